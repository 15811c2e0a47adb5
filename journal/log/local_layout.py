"""The files of a local log, and its options.

The folder holds ``register``, ``reserve``, the WAL files ``<epoch:016x>-<sequence:08x>.wal`` and a spare,
``<epoch:016x>-<sequence:08x>.spare``. Other names are ignored and kept.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

import attrs
from msgspec import Struct

from ...storage_backends.base.values import Value
from .frames import FileId

_MOVED = "-before-"
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})\.(wal|spare)")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LocalLogOptions(Value):
    """All sizes in bytes."""

    file_size: int = attrs.field(default=64 << 20, validator=attrs.validators.ge(1))
    """A new file is begun once the current one has this size. Truncation frees whole files."""
    reserve: int = attrs.field(default=4 << 20, validator=attrs.validators.ge(0))
    """Bytes allocated ahead of the write position, and again in the ``reserve`` file, for internal groups on
    a full disk (W6)."""
    allocation_step: int = attrs.field(default=8 << 20, validator=attrs.validators.ge(1))
    """Blocks are allocated, and free space is measured, in steps of this size."""
    length_step: int = attrs.field(default=1 << 20, validator=attrs.validators.ge(0))
    """A file is extended in steps of this size, so that few syncs have to make a new length durable; 0
    extends it with each group."""
    low_water: int = attrs.field(default=64 << 20, validator=attrs.validators.ge(0))
    """User appends are refused below this much free space, and accepted again above twice as much (W6)."""


class LogLayout(Struct, frozen=True):
    """Paths of one log."""

    folder: str

    @property
    def register(self) -> str:
        return f"{self.folder}/register"

    @property
    def reserve(self) -> str:
        return f"{self.folder}/reserve"

    def wal(self, file: FileId) -> str:
        return f"{self.folder}/{wal_name(file)}"

    def spare(self, file: FileId) -> str:
        """Where the owner keeps ``file``, which is not needed any more, to write it over (W13)."""
        return f"{self.folder}/{spare_name(file)}"


def log_folder(wal: str, container: int) -> str:
    """The folder of one container's log under the store's WAL folder."""
    return f"{wal}/{container:04d}"


def moved_folder(folder: str, new_id: str) -> str:
    """Where a recovery moves the log in ``folder`` (rule R11), and a restore the logs of a store."""
    return f"{folder}{_MOVED}{new_id}"


def moved_folders(folder: str, siblings: Iterable[str]) -> list[str]:
    """The paths of what was moved from ``folder``, among the names beside it, sorted."""
    parent, name = posixpath.split(folder)
    return sorted(f"{parent}/{each}" for each in siblings if each.startswith(f"{name}{_MOVED}"))


def wal_name(file: FileId) -> str:
    return f"{file.epoch:016x}-{file.sequence:08x}.wal"


def spare_name(file: FileId) -> str:
    return f"{file.epoch:016x}-{file.sequence:08x}.spare"


def parse_wal_names(names: Iterable[str]) -> list[FileId]:
    """The WAL files among ``names``, oldest first."""
    return _parse_names(names, "wal")


def parse_spare_names(names: Iterable[str]) -> list[FileId]:
    """The spares among ``names``, oldest first."""
    return _parse_names(names, "spare")


def _parse_names(names: Iterable[str], kind: str) -> list[FileId]:
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(
        FileId(int(match[1], 16), int(match[2], 16)) for match in matches if match and match[3] == kind
    )
