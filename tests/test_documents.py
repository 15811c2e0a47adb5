"""The README and the guides are true: their examples run and type-check, and what they name exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tierlog
from support.service import service
from tierlog.actors.settings.configuration_file import parse_config

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = {
    path.name: path.read_text(encoding="utf-8")
    for path in [
        ROOT / "README.md",
        *(ROOT / "docs" / f"{name}.md" for name in ("embedding", "service", "operating")),
    ]
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVICE = "http://127.0.0.1:8470"


def blocks(language: str) -> list[str]:
    return [code for text in DOCUMENTS.values() for kind, code in BLOCK.findall(text) if kind == language]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_every_embedded_example_runs_and_runs_again(number: int, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(blocks("python")[number])
    (tmp_path / "tierlog.toml").write_text(blocks("toml")[0])

    twice = "import runpy\nfor _ in range(2): runpy.run_path('example.py', run_name='__main__')"

    done = run([sys.executable, "-W", "error", "-c", twice], tmp_path)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_examples_of_clients_run_one_after_the_other(tmp_path: Path) -> None:
    """Spark's example is run by tests/spark_bridge."""
    examples = [code for code in blocks("py") if "spark" not in code]
    with service(tmp_path / "data") as url:
        outputs = []
        for example in examples:
            done = run([sys.executable, "-W", "error", "-c", example.replace(SERVICE, url)], tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            outputs.append(done.stdout)

    assert outputs == ["b'hello'\n", "0 b'hello'\n", "app/events 6\napp/log 6\n"]


TYPES = """
import tierlog


async def use(store: tierlog.SegmentStore, client: tierlog.Client, plain: tierlog.SyncClient) -> int:
    offset: int = await store.append("s", b"x") + await client.append_many("s", [b"x"])
    repeated: int | None = plain.append("s", b"x", writer_id="w", event_number=1)
    either: tuple[tierlog.SegmentVerbs, ...] = (store, client)
    status: tierlog.HostStatus = await client.health()
    counts: tierlog.ClientStatistics = client.statistics()
    writer: tierlog.WriterId = b"w"
    hook: tierlog.SpanHook = tierlog.opentelemetry_tracing()
    return offset + plain.append("s", b"x", expected_offset=3) + (repeated or 0)


tierlog.open_stor  # type: ignore[attr-defined]  # a misspelt name is an error
"""
"""What a checker must know: only an append with a writer id may return None; no name is made up."""


@pytest.mark.long
def test_every_example_passes_mypy_strict(tmp_path: Path) -> None:
    """Run by scripts/check."""
    for number, code in enumerate([*blocks("python"), *blocks("py")]):
        declared = "from pyspark.sql import DataFrame, SparkSession\nframe: DataFrame\nspark: SparkSession\n"
        (tmp_path / f"example_{number}.py").write_text(declared + code if "spark." in code else code)
    (tmp_path / "example_types.py").write_text(TYPES)

    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "tierlog").symlink_to(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--follow-imports", "silent"]
        + [path.name for path in sorted(tmp_path.glob("example_*.py"))],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_there_are_examples_for_both_event_loops() -> None:
    loops = {loop for loop in ("asyncio", "trio") for code in blocks("python") if f"{loop}.run(main" in code}

    assert loops == {"asyncio", "trio"}


@pytest.mark.extended
def test_the_commands_run_in_the_order_in_which_they_stand(tmp_path: Path) -> None:
    (commands,) = (code for code in blocks("sh") if "tierlog segment" in code)

    done = run(["sh", "-e", "-c", commands], tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "hello\nonce" in done.stdout


def test_every_verb_exists_and_every_verb_is_named() -> None:
    """In a guide, or on the page of its protocol, which a new verb changes anyway (CONTRIBUTING.md)."""
    public = {name for name in dir(tierlog.SegmentStore) if not name.startswith("_")}
    named = {verb for text in DOCUMENTS.values() for verb in re.findall(r"\bstore\.(\w+)", text)}
    protocol = (ROOT / "docs" / "protocols" / "container.md").read_text(encoding="utf-8")

    assert named - public == set()
    assert public - named - set(re.findall(r"`(\w+)`", protocol)) == {
        "container_of",
        "containers",
        "local_containers",
        "mark_closed",
        "on_container",
        "read_or_watch",
        "read_view",
        "take_backup_step",
    }


def test_every_error_is_in_the_table() -> None:
    errors = {
        name
        for name in tierlog.__all__
        if isinstance(kind := getattr(tierlog, name), type) and issubclass(kind, Exception)
    }
    rows = [line for line in DOCUMENTS["embedding.md"].splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}

    assert named == errors - {"TierlogError"}


def test_the_configuration_shows_the_defaults() -> None:
    assert parse_config(tomllib.loads(blocks("toml")[0])) == tierlog.StoreConfig()


@pytest.mark.parametrize("script", sorted(set(re.findall(r"scripts/(\w+(?:\.py)?)", DOCUMENTS["README.md"]))))
def test_every_script_exists(script: str) -> None:
    assert os.access(ROOT / "scripts" / script, os.X_OK)


def test_the_readme_is_short() -> None:
    assert len(DOCUMENTS["README.md"].splitlines()) <= 150
