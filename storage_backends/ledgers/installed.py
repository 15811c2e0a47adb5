"""What the sidecar is made of: a pinned list of files, its own sources, and where they are installed."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import attrs

from ..base.errors import ConfigError
from ..base.modes import WRITABLE_BY_OTHERS, is_guarded
from ..base.os_errors import explain
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
    return read_artifacts(_HERE / "artifacts.txt")


def read_artifacts(path: Path) -> Sequence[Artifact]:
    """A list of files, one a line; those that begin with # are comments."""
    found = [line.split() for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    return tuple(Artifact(group, path, int(size), digest) for group, path, size, digest in found)


@attrs.frozen
class JavaProgram:
    """Sources by file name, in the default package."""

    name: str
    sources: Mapping[str, bytes]

    @property
    def archive(self) -> str:
        """The name of that of its classes: another version has another one."""
        digest = hashlib.sha256()
        for name, source in self.sources.items():
            digest.update(name.encode() + b"\0" + source)
        return f"{self.name}-{digest.hexdigest()[:16]}.jar"


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


def _absolute(folder: Path) -> Path:
    return folder.absolute()


@attrs.frozen
class Installation:
    """A folder with the files of ``artifacts``, and the sidecar of each version that was installed."""

    folder: Path = attrs.field(converter=_absolute)
    """Absolute: a sidecar runs in it, not where this process does."""

    @property
    def jars(self) -> Path:
        return self.folder / "jars"

    def jar(self, artifact: Artifact) -> Path:
        return self.jars / artifact.name

    def classes(self, program: JavaProgram) -> Path:
        """The archive of those of this version, if they are installed."""
        return self.folder / program.archive

    def class_path(self, groups: Collection[str]) -> list[str]:
        return [str(self.jar(each)) for each in artifacts() if each.group in groups]

    def program(self, heap_mb: int = HEAP_MB) -> SidecarProgram:
        """The sidecar. Raises ``ConfigError`` as ``check`` does, or without Java, which comes first."""
        java = find_java()
        self.check()
        path = (str(self.classes(sidecar())), *self.class_path([CLIENT]))
        return SidecarProgram(
            java=java, class_path=path, folder=str(self.folder), heap_mb=heap_mb, check=self.verify
        )

    def check(self) -> None:
        """Raises ``ConfigError`` if a part of the sidecar is missing, has another size than it should, or can
        be changed by others."""
        self.require([CLIENT])
        classes = self.classes(sidecar())
        try:
            if size_of(classes) is None:
                raise ConfigError(f"{self.folder} has no sidecar for BookKeeper of this version: {_ADVICE}")
            self.refuse_shared([classes])
            is_whole = is_archive(classes)
        except OSError as error:
            raise ConfigError(explain(error, str(classes))) from error
        if not is_whole:
            raise ConfigError(f"{classes} is damaged: {_ADVICE}")

    def verify(self) -> None:
        """``check``, and the checksums of all files, which takes 60 ms. Nothing remembers its result: a file
        may be changed without its times."""
        self.check()
        wanted = [(self.jar(each), each.sha256) for each in artifacts() if each.group == CLIENT]
        classes = self.classes(sidecar())
        try:
            harmed = next((jar for jar, expected in wanted if digest_of(jar) != expected), None)
            if harmed is None and not is_archive(classes, deep=True):
                harmed = classes
        except OSError as error:
            raise ConfigError(explain(error, str(self.folder))) from error
        if harmed is not None:
            raise ConfigError(f"{harmed} is damaged, its checksum is wrong: {_ADVICE}")

    def require(self, groups: Collection[str], option: str = "") -> None:
        """Raises ``ConfigError`` if a file of these groups is missing, has another size than the pinned one,
        or can be changed by others; ``option`` would install it."""
        advice = f"run `tierlog bookkeeper install {option}`" if option else _ADVICE
        wanted = [each for each in artifacts() if each.group in groups]
        try:
            sizes = {each: size_of(self.jar(each)) for each in wanted}
            missing = sorted(each.name for each, size in sizes.items() if size is None)
            if missing:
                what = f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else missing[0]
                raise ConfigError(f"{self.folder} has no {what}, which BookKeeper needs: {advice}")
            self.refuse_shared([self.folder, self.jars, *map(self.jar, wanted)])
        except OSError as error:
            raise ConfigError(explain(error, str(self.folder))) from error
        for each, size in sizes.items():
            if size != each.size:
                raise ConfigError(
                    f"{self.jar(each)} is damaged, it has {size} bytes instead of {each.size}: {advice}"
                )

    def refuse_shared(self, paths: Sequence[Path]) -> None:
        """Raises ``ConfigError`` if another user could put programs there, which this user would run."""
        shared = next((path for path in paths if not is_guarded(str(path))), None)
        if shared is None:
            return
        parent = self.folder.parent
        mode = parent.stat().st_mode
        is_open = mode & WRITABLE_BY_OTHERS and not mode & stat.S_ISVTX
        above = f"chmod go-w {parent} && " if is_open else ""
        raise ConfigError(
            f"other users can change {shared}, from which BookKeeper's client runs: take that right from "
            f"them (`{above}chmod -R go-w {self.folder}`; `chown` what is neither yours nor root's), or name "
            f"another folder"
        )


def size_of(path: Path) -> int | None:
    """None if the file is missing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def digest_of(path: Path) -> str:
    """Its SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_archive(path: Path, *, deep: bool = False) -> bool:
    """Whether the file is a whole archive: its table, which is at its end, and with ``deep`` the checksums of
    all that is in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return not deep or archive.testzip() is None
    # The others: a damaged entry seems to be compressed, or encrypted.
    except (FileNotFoundError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
        return False


def find_program(folder: str = "", *, heap_mb: int = HEAP_MB) -> SidecarProgram:
    """What is installed in ``folder``, or in the default one. Raises ``ConfigError`` if anything is missing
    or damaged, Java first."""
    return Installation(Path(folder) if folder else default_folder()).program(heap_mb)
