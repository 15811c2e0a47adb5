"""File calls below a folder that never follow a symbolic link, no matter who creates one and when.

The walk from the folder to a path's parent opens each component without following links, and the call is
relative to the last descriptor. So no concurrent change can redirect a call out of the folder, and no check
can race. The folder itself, which may be a link, is opened at the first call below it and stays open until it
is made by its own name: a mount that comes or goes meanwhile redirects no later call. A path outside the
folder is used as it is.

A link on the way raises ``NotADirectoryError`` or ``ELOOP``, opening one ``ELOOP``. Anything else but a
regular file raises ``IsADirectoryError``, devices and pipes too, which are never waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from ..base import modes

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NoFollowFolder:
    def __init__(self, root: str) -> None:
        self._root = root
        self._prefix = f"{root.rstrip('/')}/"
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_root()

    def __repr__(self) -> str:
        return f"<NoFollowFolder {self._root}>"

    def open(self, path: str, flags: int, mode: int) -> int:
        with self._parent(path) as (folder, name):
            return open_file(name, flags, mode, folder)

    def open_folder(self, path: str) -> int:
        if path == self._root:
            return os.open(".", _FOLDER, dir_fd=self._open_root())

        with self._parent(path) as (folder, name):
            return os.open(name, _FOLDER if folder is not None else _FOLDER & ~os.O_NOFOLLOW, dir_fd=folder)

    def make_folders(self, path: str) -> None:
        """Make a folder and its missing parents; existing is fine."""
        if not path.startswith(self._prefix):
            modes.make_folders(path)
            if path == self._root:
                self._close_root()  # It may be another one now: the next call opens it.
            return

        done = self._prefix.rstrip("/")
        for part in path[len(self._prefix) :].split("/"):
            done = f"{done}/{part}"
            with self._parent(done) as (folder, name):
                try:
                    os.mkdir(name, modes.FOLDER, dir_fd=folder)
                except FileExistsError:
                    os.close(self.open_folder(done))  # Raises for a link or a file.

    def unlink(self, path: str) -> None:
        with self._parent(path) as (folder, name):
            if folder is not None:
                _require_file(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
            os.unlink(name, dir_fd=folder)

    def remove_folder(self, path: str) -> None:
        with self._parent(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def link(self, source: str, target: str) -> None:
        with self._parent(source) as (source_folder, old), self._parent(target) as (target_folder, new):
            os.link(old, new, src_dir_fd=source_folder, dst_dir_fd=target_folder, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        with self._parent(source) as (source_folder, old), self._parent(target) as (target_folder, new):
            os.rename(old, new, src_dir_fd=source_folder, dst_dir_fd=target_folder)

    def status(self, path: str) -> os.stat_result:
        """The status of a regular file."""
        return _require_file(self.status_of_name(path), path)

    def status_of_name(self, path: str) -> os.stat_result:
        """The status of whatever has that name, a link too."""
        with self._parent(path) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def change_mode(self, path: str, mode: int) -> None:
        # By descriptor, because `chmod` of a name would follow a link.
        fd = self.open(path, os.O_RDONLY | os.O_CLOEXEC, 0)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int | None, str]]:
        """(descriptor of the folder of ``path``, name in it), or (None, ``path``) if it is not below the
        root."""
        if not path.startswith(self._prefix):
            yield None, path
            return

        *parts, name = path[len(self._prefix) :].split("/")
        root = fd = self._open_root()
        try:
            for part in parts:
                # Relative to the descriptor: nobody can replace a component that was opened.
                below = os.open(part, _FOLDER, dir_fd=fd)
                if fd != root:
                    os.close(fd)
                fd = below
            yield fd, name
        finally:
            if fd != root:
                os.close(fd)

    def _open_root(self) -> int:
        if self._fd < 0:
            # The folder itself may be a link: its owner chose it.
            self._fd = os.open(self._root, _FOLDER & ~os.O_NOFOLLOW)
        return self._fd

    def _close_root(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_file(path: str, flags: int, mode: int, folder: int | None = None) -> int:
    """Open the regular file ``path`` (relative to the descriptor ``folder``) and wait for nothing: opening a
    pipe would wait for its other end."""
    # Opened before it is examined: another file may have the name after a check.
    fd = os.open(path, flags | _FILE, mode, dir_fd=folder)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd

    os.close(fd)
    raise IsADirectoryError(errno.EISDIR, "not a regular file", path)


def _require_file(status: os.stat_result, path: str) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "not a regular file", path)
    return status
