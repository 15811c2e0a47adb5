"""What the sidecar is made of: a pinned list of files, its own sources, and where they are installed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import attrs

from ..base.errors import ConfigError
from .java_runtime import find_java
from .process import HEAP_MB, SidecarProgram

FOLDER_VARIABLE = "TIERLOG_BOOKKEEPER_FOLDER"
CLIENT, SERVER, COMPILER = "client", "server", "compiler"
_HERE = Path(__file__).parent
_ADVICE = "run `tierlog bookkeeper install`"


@attrs.frozen
class Artifact:
    group: str
    """``CLIENT``, ``SERVER`` or ``COMPILER``."""
    path: str
    """In a Maven repository."""
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@cache
def artifacts() -> Sequence[Artifact]:
    lines = (_HERE / "artifacts.txt").read_text("utf-8").splitlines()
    found = [line.split() for line in lines if not line.startswith("#")]
    return tuple(Artifact(group, path, int(size), digest) for group, path, size, digest in found)


@attrs.frozen
class JavaProgram:
    """Sources by file name, in the default package."""

    name: str
    sources: Mapping[str, bytes]

    @property
    def folder(self) -> str:
        """The name of that of its classes: another version has another one."""
        digest = hashlib.sha256()
        for name, source in self.sources.items():
            digest.update(name.encode() + b"\0" + source)
        return f"{self.name}-{digest.hexdigest()[:16]}"


@cache
def sidecar() -> JavaProgram:
    files = sorted((_HERE / "java").glob("*.java"))
    return JavaProgram("sidecar", {path.name: path.read_bytes() for path in files})


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    chosen = environment.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    shared = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(shared) / "tierlog" / "bookkeeper"


@attrs.frozen
class Installation:
    """A folder with the files of ``artifacts``, and the sidecar of each version that was installed."""

    folder: Path

    def jar(self, artifact: Artifact) -> Path:
        return self.folder / "jars" / artifact.name

    def classes(self, program: JavaProgram) -> Path:
        """Those of this version, if they are installed."""
        return self.folder / program.folder

    def class_path(self, groups: Collection[str]) -> list[str]:
        return [str(self.jar(each)) for each in artifacts() if each.group in groups]

    def missing(self, groups: Collection[str]) -> Iterator[str]:
        for each in artifacts():
            if each.group in groups and not self.jar(each).exists():
                yield each.name

    def program(self, heap_mb: int = HEAP_MB) -> SidecarProgram:
        """The sidecar. Raises ``ConfigError`` if anything is missing, Java first."""
        java = find_java()
        self.require([CLIENT])
        classes = self.classes(sidecar())
        if not classes.exists():
            raise ConfigError(f"{self.folder} has no sidecar for BookKeeper of this version: {_ADVICE}")
        path = (str(classes), *self.class_path([CLIENT]))
        return SidecarProgram(java=java, class_path=path, folder=str(self.folder), heap_mb=heap_mb)

    def require(self, groups: Collection[str], option: str = "") -> None:
        """Raises ``ConfigError`` if a file of these groups is missing; ``option`` would install it."""
        missing = sorted(self.missing(groups))
        if missing:
            what = f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else missing[0]
            advice = f"run `tierlog bookkeeper install {option}`" if option else _ADVICE
            raise ConfigError(f"{self.folder} has no {what}, which BookKeeper needs: {advice}")


def find_program(folder: str = "", *, heap_mb: int = HEAP_MB) -> SidecarProgram:
    """What is installed in ``folder``, or in the default one. Raises ``ConfigError`` if anything is missing,
    Java first."""
    return Installation(Path(folder).absolute() if folder else default_folder()).program(heap_mb)
