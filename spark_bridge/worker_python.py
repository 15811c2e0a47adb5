"""``tierlog-spark-python``: the Python of its environment, as the program for Spark's ``PYSPARK_PYTHON``.

Spark puts its own ``pyspark.zip`` in front of PYTHONPATH. The archive has no compiled code, so each Python
process that Spark starts compiles PySpark again: half a second of a core, three times one after the other
before the first rows of an application are written. Where the environment has the same version installed,
with compiled code, the archive is left out. Anything else of PYTHONPATH stays, and so does an archive of
another version."""

from __future__ import annotations

import os
import sys
import sysconfig
import zlib
from collections.abc import Mapping
from zipimport import ZipImportError, zipimporter

_PACKAGES = ("pyspark", "py4j")


def main() -> None:
    environment = without_archives(os.environ, sysconfig.get_path("purelib"))
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)  # noqa: S606 - it has none to pass


def without_archives(environment: Mapping[str, str], installed: str) -> dict[str, str]:
    """The variables without those archives of PYTHONPATH whose packages the folder ``installed`` has in the
    same version."""
    path = environment.get("PYTHONPATH", "")
    kept = os.pathsep.join(entry for entry in path.split(os.pathsep) if not _is_installed(entry, installed))
    found = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    # An empty entry would be the current folder.
    return {**found, "PYTHONPATH": kept} if kept else found


def _is_installed(entry: str, installed: str) -> bool:
    name = os.path.basename(entry)
    package = next((each for each in _PACKAGES if name.startswith(each) and name.endswith(".zip")), None)
    if package is None:
        return False

    try:
        archived = zipimporter(os.path.join(entry, package)).get_source("version")
        with open(os.path.join(installed, package, "version.py"), encoding="utf-8") as stream:
            return stream.read() == archived
    # Of a damaged archive any of them, by where the damage is.
    except (ZipImportError, OSError, EOFError, UnicodeDecodeError, zlib.error):
        return False


if __name__ == "__main__":
    main()
