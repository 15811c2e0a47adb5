"""The door that Spark finds by itself: nothing heavy behind it before it is asked, and no exception that
would hide others' sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaos_parts.spark_session import DISCOVERY


def run(program: str, folder: Path, *paths: str) -> str:
    lines = f"import sys\nsys.path[:0] = {[*paths, str(DISCOVERY)]!r}\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def test_the_data_source_module_is_listed_and_imports_nothing(tmp_path: Path) -> None:
    program = (
        "import pkgutil\n"
        "print('pyspark_tierlog' in {found.name for found in pkgutil.iter_modules()})\n"
        "import pyspark_tierlog\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'pyspark', 'pyarrow', 'tierlog', "
        "'attrs', 'httpx'}))\n"
    )

    assert run(program, tmp_path) == "True\n[]\n"


def test_a_process_that_only_looks_for_the_data_source_imports_no_client(tmp_path: Path) -> None:
    """Spark starts one to look for data sources and one to make them, and each imports everything anew."""
    pytest.importorskip("pyspark", reason="needs PySpark: pip install -e '.[dev,spark]'")
    program = (
        "import pyspark_tierlog\n"
        "source = pyspark_tierlog.DefaultSource({'endpoint': 'http://127.0.0.1:1', 'segment': 's'})\n"
        "print(source.name(), sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'pyarrow', 'pandas', 'attrs', 'anyio', 'httpx'}))\n"
    )

    assert run(program, tmp_path) == "tierlog []\n"


def test_a_broken_data_source_module_hides_no_other_source(tmp_path: Path) -> None:
    """Spark asks each package with `hasattr`. A PySpark that cannot be imported stands for anything that is
    wrong."""
    broken = tmp_path / "broken" / "pyspark"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('a broken installation')\n")

    said = run(
        "import pyspark_tierlog\nprint(hasattr(pyspark_tierlog, 'DefaultSource'))",
        tmp_path,
        str(broken.parent),
    )

    assert said.startswith("False\n")
    assert "Spark cannot use the data source 'tierlog': OSError: a broken installation" in said


def test_other_names_are_not_there(tmp_path: Path) -> None:
    assert run("import pyspark_tierlog\nprint(hasattr(pyspark_tierlog, 'Source'))", tmp_path) == "False\n"
