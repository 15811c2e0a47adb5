"""The modes of new files and folders: only the user who runs the process can read them, write them, or hold
their locks, unless they are programs. The modes of existing ones stay as they are."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress

FILE = 0o600
READ_ONLY_FILE = 0o400
FOLDER = 0o700
PROGRAM_FILE = 0o644
PROGRAM_FOLDER = 0o755
"""Other users may run what is there."""
WRITABLE_BY_OTHERS = 0o022


def make_folders(path: str, mode: int = FOLDER) -> None:
    """Make a folder and its missing parents; existing is fine. Raises ``FileNotFoundError`` if another
    process removes one of them meanwhile."""
    parent = os.path.dirname(path)
    if parent and not os.path.isdir(parent):
        make_folders(parent, mode)
    try:
        os.mkdir(path, mode)
    # Another process may have made it since, and removed it again.
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode) and not os.path.isdir(path):
            raise


def is_as_made(folder: str) -> bool:
    """Whether an existing folder is as ``make_folders`` makes it. What the system adds by itself does not
    count: the setgid bit of the parent, and labels of a security module."""
    status = os.lstat(folder)
    mode = stat.S_IMODE(status.st_mode) & ~stat.S_ISGID
    attributes: list[str] = []
    if sys.platform == "linux":
        with suppress(OSError):  # The file system has none.
            attributes = os.listxattr(folder, follow_symlinks=False)
    return (stat.S_ISDIR(status.st_mode), status.st_uid, mode) == (True, os.geteuid(), FOLDER) and all(
        name.startswith("security.") for name in attributes
    )


def is_guarded(path: str) -> bool:
    """Whether nobody but this user and root can change what is in the folder or file, or put another one in
    its place."""
    status, parent = os.stat(path), os.stat(os.path.dirname(path))
    if not {status.st_uid, parent.st_uid} <= {os.geteuid(), 0}:
        return False

    is_sticky = bool(parent.st_mode & stat.S_ISVTX)
    return not status.st_mode & WRITABLE_BY_OTHERS and (is_sticky or not parent.st_mode & WRITABLE_BY_OTHERS)
