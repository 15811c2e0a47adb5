"""A lock that one process holds at a time: the file ``lock`` in a folder.

It ends with its process. The file has the number of that process, for messages: only the lock decides.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable

from ...storage_backends.base.errors import TierlogError
from ...storage_backends.base.files import (
    FULL,
    Close,
    FileHandle,
    IsNamed,
    Lock,
    Open,
    Program,
    Read,
    RemoveFolder,
    Unlink,
    Write,
    with_folder,
)

LOCK_FILE = "lock"
_RECORD_BYTES = 64


def take_lock(
    folder: str, refusal: Callable[[str], TierlogError], *, with_parent: bool = False
) -> Program[FileHandle]:
    """Lock the file ``lock`` in ``folder``, which is made if it is missing (``with_parent``: as in
    ``make_folder``). Raises ``refusal`` of the process that holds it. The lock lives as long as the
    handle."""
    while True:
        handle = yield from with_folder(
            folder, lambda: _open(f"{folder}/{LOCK_FILE}"), with_parent=with_parent
        )
        try:
            if not (yield Lock(handle, wait=False)):
                raise refusal(_pid((yield Read(handle, 0, _RECORD_BYTES))))
            # Without a name: its holder has removed it since it was opened.
            if (yield IsNamed(handle)):
                yield from _write_pid(handle)
                return handle
        except (OSError, TierlogError):
            yield Close(handle)
            raise
        yield Close(handle)


def remove_lock(folder: str) -> Program[None]:
    """Remove the lock that this process holds, and the folder. The handle is closed after that."""
    yield Unlink(f"{folder}/{LOCK_FILE}")
    try:
        yield RemoveFolder(folder)
    except OSError as error:
        # Another process has taken the lock in it since, or removed it.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
            raise


def _open(path: str) -> Program[FileHandle]:
    try:
        handle: FileHandle = yield Open(path, write=True, create=True)
    except FileExistsError:
        handle = yield Open(path, write=True)
    return handle


def _write_pid(handle: FileHandle) -> Program[None]:
    try:
        yield Write(handle, 0, [json.dumps({"pid": os.getpid()}).encode().ljust(_RECORD_BYTES)])
    except OSError as error:
        # The lock is enough, and what makes room on a full disk needs an opening.
        if error.errno not in FULL:
            raise


def _pid(data: bytes) -> str:
    try:
        return str(int(json.loads(data)["pid"]))
    # Whoever may write into the folder may have put anything there.
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "(unknown)"
