"""The README is true: its examples run, and what it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tierlog
from tierlog.actors.settings.configuration import parse_config

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(README) if kind == language]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_every_python_example_runs(number: int, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(blocks("python")[number])
    (tmp_path / "tierlog.toml").write_text(blocks("toml")[0])

    done = run([sys.executable, "-W", "error", "example.py"], tmp_path)

    assert (done.returncode, done.stderr) == (0, "")


def test_there_are_examples_for_both_event_loops() -> None:
    assert {
        loop for loop in ("asyncio", "trio") for text in blocks("python") if f"{loop}.run(main" in text
    } == {"asyncio", "trio"}


def test_the_commands_run_in_the_order_in_which_they_stand(tmp_path: Path) -> None:
    (commands,) = (text for text in blocks("sh") if "tierlog segment" in text)

    done = run(["sh", "-e", "-c", commands], tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "hello\nonce" in done.stdout


def test_every_verb_exists_and_every_verb_is_named() -> None:
    public = {name for name in dir(tierlog.SegmentStore) if not name.startswith("_")}
    named = set(re.findall(r"\bstore\.(\w+)", README))

    assert named - public == set()
    assert public - named == {"container_of", "containers", "mark_closed", "on_container", "read_view"}


def test_every_error_is_in_the_table() -> None:
    errors = {
        name
        for name in tierlog.__all__
        if isinstance(kind := getattr(tierlog, name), type) and issubclass(kind, Exception)
    }
    named = {
        name
        for line in README.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }

    assert named == errors - {"TierlogError"}


def test_the_configuration_shows_the_defaults() -> None:
    assert parse_config(tomllib.loads(blocks("toml")[0])) == tierlog.StoreConfig()


@pytest.mark.parametrize("script", sorted(set(re.findall(r"scripts/(\w+(?:\.py)?)", README))))
def test_every_script_exists(script: str) -> None:
    assert os.access(ROOT / "scripts" / script, os.X_OK)
