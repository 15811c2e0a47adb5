"""Reads of ranges of files below a folder, by a plain thread and into memory that the caller has: for readers
that have no event loop.

No symbolic link is followed below the folder (``nofollow.py``). One file is kept open, the last one that was
read: readers go through one file after the other. Errors are those of the system. Cancellation: none."""

from __future__ import annotations

import os

from .nofollow import NoFollowFolder


class FileRanges:
    """``root`` is an absolute path. For one thread at a time."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._folder = NoFollowFolder(self._root)
        self._name, self._fd = "", -1

    def __repr__(self) -> str:
        return f"<FileRanges {self._root}>"

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def read_into(self, name: str, offset: int, target: memoryview) -> int:
        """Fill ``target`` with the bytes of the file at ``offset``; returns how many there were."""
        if name != self._name:
            self.close_file()
            self._fd, self._name = self._folder.open(self.path(name), os.O_RDONLY, 0), name
        done = 0
        # The kernel may return less; only nothing is the end of the file.
        while done < len(target) and (count := os.preadv(self._fd, [target[done:]], offset + done)):
            done += count
        return done

    def close_file(self) -> None:
        """Read the next range from the file that has the name then."""
        if self._fd >= 0:
            os.close(self._fd)
        self._name, self._fd = "", -1

    def close(self) -> None:
        self.close_file()
        self._folder.__exit__(None, None, None)
