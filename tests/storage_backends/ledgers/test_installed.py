"""What a store on BookKeeper needs on its machine, and what is said where it is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tierlog import ConfigError
from tierlog.storage_backends.ledgers.installed import find_program


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only one in PATH."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def install(folder: Path) -> Path:
    (folder / "classes").mkdir(parents=True)
    (folder / "classes" / "Sidecar.class").touch()
    return folder


def test_the_sidecar_runs_what_was_installed(java: Path, tmp_path: Path) -> None:
    folder = install(tmp_path / "installed")
    program = find_program(str(folder), heap_mb=77)
    assert (program.java, program.jars) == (str(java), f"{folder}/jars")
    assert "-Xmx77m" in program.command()


def test_without_a_setting_it_is_in_the_users_data_folder(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = install(tmp_path / "tierlog" / "bookkeeper")
    assert find_program("", heap_mb=64).classes == f"{folder}/classes"


def test_missing_jars_are_reported_with_the_command_that_installs_them(java: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run `tierlog bookkeeper install`, or name their folder"):
        find_program(str(tmp_path), heap_mb=64)


@pytest.mark.parametrize("home", ["", "nowhere"])
def test_java_is_missed_first(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    os.remove(java)
    if home:
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(ConfigError, match="install a JDK, version 17 or newer"):
        find_program(str(tmp_path), heap_mb=64)
