"""What `tierlog bookkeeper install` has installed: where it is, and whether it can run."""

from __future__ import annotations

import os
import shutil

from ..base.errors import ConfigError
from .process import SidecarProgram

_INSTALL = "`tierlog bookkeeper install`"


def default_folder() -> str:
    """Where the jars and classes are unless the configuration says so."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return f"{data}/tierlog/bookkeeper"


def find_program(folder: str, *, heap_mb: int) -> SidecarProgram:
    """The program in ``folder``, or in the default one. Raises ``ConfigError`` if something is missing."""
    folder = os.path.abspath(folder or default_folder())
    java = find_java()
    if not os.path.exists(f"{folder}/classes/Sidecar.class"):
        raise ConfigError(
            f"a store on BookKeeper needs the jars of its clients, and {folder} has none: run {_INSTALL}, or "
            f"name their folder, `folder` of [bookkeeper]"
        )
    return SidecarProgram(java=java, jars=f"{folder}/jars", classes=f"{folder}/classes", heap_mb=heap_mb)


def find_java() -> str:
    """Raises ``ConfigError`` if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java in PATH"
        raise ConfigError(
            f"a store on BookKeeper needs Java, and {where}: install a JDK, version 17 or newer, then run "
            f"{_INSTALL}"
        )
    return java
