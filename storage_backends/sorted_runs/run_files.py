"""Runs as local files: their names, and the programs that write and read one (rule M6).

A run is the file ``<name with '+' for '/'>.<CRC32C in hexadecimal>.run``, so a file can never be taken for
another run's. It is written under a temporary name, synced, renamed, and the folder is synced.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..base.checksum import Buffer
from ..base.files import (
    Close,
    FileHandle,
    ListFolder,
    Open,
    Program,
    Read,
    Rename,
    Sync,
    SyncFolder,
    Unlink,
    Write,
)
from .run_entry import RunEntry

TEMPORARY = ".tmp-"
_SUFFIX = ".run"


def file_name(run: RunEntry) -> str:
    return f"{run.name.replace('/', '+')}.{run.crc:08x}{_SUFFIX}"


def is_own(name: str) -> bool:
    """Whether a file of that name in the folder of local runs is one of them, complete or not."""
    return name.endswith(_SUFFIX) or name.startswith(TEMPORARY)


def path_of(folder: str, run: RunEntry) -> str:
    return f"{folder}/{file_name(run)}"


def temporary_path(folder: str, name: str) -> str:
    return f"{folder}/{TEMPORARY}{name.replace('/', '+')}"


def create_temporary(folder: str, name: str) -> Program[FileHandle]:
    """A new, empty file for the run ``name``. What an earlier attempt left is removed."""
    path = temporary_path(folder, name)
    with suppress(FileNotFoundError):
        yield Unlink(path)
    handle: FileHandle = yield Open(path, write=True, create=True)
    return handle


def name_complete(folder: str, run: RunEntry) -> Program[None]:
    """Give the complete, synced file of a run its name, durably."""
    yield Rename(temporary_path(folder, run.name), path_of(folder, run))
    yield SyncFolder(folder)


def write_run(folder: str, run: RunEntry, pieces: Sequence[Buffer]) -> Program[None]:
    """Write a run's file durably, or nothing under its name. A failed one leaves no temporary file either,
    which would take room on a full disk."""
    handle = yield from create_temporary(folder, run.name)
    try:
        try:
            yield Write(handle, 0, pieces, bulk=True)
            yield Sync(handle)
        except Exception:
            yield Close(handle)
            raise
        yield Close(handle)
        yield from name_complete(folder, run)
    except Exception:
        yield from remove_file(temporary_path(folder, run.name))
        raise


def remove_outputs(folder: str, name: str) -> Program[None]:
    """Remove what a merge whose runs are named after ``name`` has written, complete or not."""
    # With the `-`: otherwise a merge would remove the files of one whose name begins with its own.
    base = name.replace("/", "+") + "-"
    for entry in (yield ListFolder(folder)):
        if entry.name.removeprefix(TEMPORARY).startswith(base):
            yield from remove_file(f"{folder}/{entry.name}")


def remove_file(path: str) -> Program[None]:
    """Remove a file that nothing needs; one that cannot be removed is found by the next opening."""
    try:
        yield Unlink(path)
    except OSError:
        return


def read_range(path: str, offset: int, length: int) -> Program[bytes]:
    handle = yield Open(path)
    try:
        data: bytes = yield Read(handle, offset, length)
    except Exception:
        yield Close(handle)
        raise
    yield Close(handle)
    return data
