"""What is shipped: the built wheel and source distribution, and how the wheel behaves once installed beside a
user's own code.

The distributions are built from a copy of the tree, so that nothing is left in the tree and nothing left in
the tree is shipped. Installing needs a reachable package index for the dependencies, as any installation
does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = (".*", "build", "dist", "*.egg-info", "__pycache__")

# The first test of the module builds and installs.
pytestmark = pytest.mark.timeout(300)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )

    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"

    return done.stdout


def install(environment: Path, what: Path | str) -> None:
    """With this environment's pip: the other one needs none of its own. Most of the modules that are
    installed are never imported."""
    pip = (sys.executable, "-m", "pip", "--python", environment / "python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-compile", what, cwd=environment)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, made from the source distribution as an index would get it, and the source
    distribution."""
    folder = tmp_path_factory.mktemp("distributions")
    tree = folder / "a tree with spaces"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", tree, cwd=folder)

    return folder / "dist"


@pytest.fixture(scope="module")
def wheel_names(distributions: Path) -> list[str]:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def installed(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of a clean environment with the wheel in it."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    (wheel,) = distributions.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=distributions)
    install(environment / "bin", wheel)

    return environment / "bin"


def test_the_wheel_has_tierlog_and_sparks_package_at_the_top(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"tierlog", "pyspark_tierlog"}
    assert len(tops) == 3
    assert [name for name in wheel_names if name.startswith("pyspark_tierlog/")] == [
        "pyspark_tierlog/__init__.py"
    ]


def test_the_wheel_is_typed(wheel_names: list[str]) -> None:
    assert "tierlog/py.typed" in wheel_names


def test_the_wheel_holds_every_source_module(wheel_names: list[str]) -> None:
    sources = ("actors", "journal", "spark_bridge", "storage_backends", "testing")
    modules = {
        f"tierlog/{path.relative_to(ROOT).as_posix()}"
        for folder in sources
        for path in (ROOT / folder).rglob("*.py")
    }
    modules |= {f"tierlog/{path.name}" for path in ROOT.glob("*.py")}
    modules.remove("tierlog/spark_bridge/discovery/pyspark_tierlog/__init__.py")  # a top-level package

    assert sorted(modules - set(wheel_names)) == []


def test_the_wheel_leaves_out_what_is_for_development(wheel_names: list[str]) -> None:
    folders = {name.split("/")[1] for name in wheel_names if name.startswith("tierlog/")}

    assert (
        folders
        & {"tests", "scripts", "benchmarks", "docs", "examples", ".ci", "pyproject.toml", "conftest.py"}
        == set()
    )


def test_the_wheel_carries_the_licence(wheel_names: list[str]) -> None:
    assert [name for name in wheel_names if name.endswith("/licenses/LICENSE")]


def test_the_source_distribution_can_be_checked_and_tested(distributions: Path) -> None:
    (archive_file,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive_file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert names >= {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "tests/conftest.py",
        "scripts/check",
        "scripts/test",
        "docs/ARCHITECTURE.md",
    }
    assert [name for name in names if "__pycache__" in name] == []


@pytest.mark.extended
def test_an_installed_tierlog_lives_beside_an_app_with_the_same_folder_names(
    installed: Path, tmp_path: Path
) -> None:
    for package in ("actors", "journal", "storage_backends", "testing"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("OWNER = 'the app'\n")

    program = (
        "import actors, journal, storage_backends, testing, tierlog\n"
        "import tierlog.actors, tierlog.journal, tierlog.storage_backends, tierlog.testing\n"
        "print(actors.OWNER, journal.OWNER, storage_backends.OWNER, testing.OWNER, hasattr(tierlog.actors, "
        "'OWNER'))\n"
        "print(tierlog.__file__)\n"
    )
    owners, where = run(installed / "python", "-c", program, cwd=tmp_path).splitlines()

    assert owners == "the app the app the app the app False"
    assert Path(where).is_relative_to(installed.parent)


@pytest.mark.extended
def test_the_installed_package_has_what_the_readme_promises(installed: Path, tmp_path: Path) -> None:
    assert (
        run(installed / "python", "-c", "import tierlog; print(callable(tierlog.open_store))", cwd=tmp_path)
        == "True\n"
    )


@pytest.mark.extended
def test_a_type_checker_sees_the_installed_package(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import tierlog\nreveal_type(tierlog.SegmentInfo.length)\n")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", installed / "python")

    assert 'Revealed type is "int"' in run(*mypy, "program.py", cwd=tmp_path)


@pytest.mark.extended
def test_spark_finds_the_installed_package_and_no_other(installed: Path, tmp_path: Path) -> None:
    """Without PySpark there is no data source, and importing the package is no error."""
    program = (
        "import pkgutil\n"
        "print([found.name for found in pkgutil.iter_modules() if found.name.startswith('pyspark_')])\n"
        "import pyspark_tierlog\n"
        "print(hasattr(pyspark_tierlog, 'DefaultSource'))\n"
    )

    assert run(installed / "python", "-c", program, cwd=tmp_path) == "['pyspark_tierlog']\nFalse\n"


@pytest.mark.extended
def test_the_installed_command_answers(installed: Path, tmp_path: Path) -> None:
    assert "segment" in run(installed / "tierlog", "--help", cwd=tmp_path)
    program = "import tierlog; print('tierlog', tierlog.__version__)"
    outputs = {
        run(installed / "tierlog", "--version", cwd=tmp_path),
        run(installed / "python", "-m", "tierlog", "--version", cwd=tmp_path),
        run(installed / "python", "-c", program, cwd=tmp_path),
    }
    assert len(outputs) == 1
