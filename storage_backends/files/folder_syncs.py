"""Syncs of folders, for all programs of the process together (rule W11).

A sync covers every change of the folder that was made before it began. So of the programs that wait for their
turn with a folder, the first one syncs it for all of them.

A sync that succeeds need not write the names that an earlier, failed one lost. So a program that made a name
in a folder, which another program then failed to sync, gets an error from its own sync too.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

from msgspec import Struct, field

Identity = tuple[int, int]
"""Device and inode of a folder."""


class _Turn(Struct, eq=False):
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    begun: int = 0
    """How many syncs have begun."""
    done: int = 0
    """The number of the newest one that succeeded."""


class FolderSyncs:
    """Syncs each folder for one program at a time, and remembers the syncs that failed."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # By identity: another folder may have the path by now, and a sync of one says nothing of the other.
        self._turns: dict[Identity, _Turn] = {}
        self._failed: dict[str, int] = {}
        self.failures = 0
        """How many syncs have failed; a program notes it when it begins."""

    def sync(self, path: str, folder: Identity, began: int, sync: Callable[[], None]) -> None:
        """Return once a sync of the folder that began after this call has succeeded: ``sync``, or another
        program's. The caller has the folder open, so that no other has its identity meanwhile.

        Raises ``OSError`` too if a sync of the path failed since the program began, when ``failures`` was
        ``began``."""
        with self._guard:
            turn = self._turns.setdefault(folder, _Turn())
            turn.users += 1
            needed = turn.begun + 1
        try:
            with turn.lock:
                self.check(path, began)
                if turn.done < needed:
                    self._sync(path, turn, sync)
        finally:
            with self._guard:
                turn.users -= 1
                if not turn.users:
                    del self._turns[folder]

    def _sync(self, path: str, turn: _Turn, sync: Callable[[], None]) -> None:
        with self._guard:
            turn.begun += 1
        try:
            sync()
        except OSError:
            self.failed(path)
            raise
        turn.done = turn.begun

    def check(self, path: str, began: int) -> None:
        if self._failed.get(path, 0) > began:
            raise OSError(errno.EIO, "another sync of the folder failed meanwhile", path)

    def failed(self, path: str) -> None:
        with self._guard:
            self.failures += 1
            self._failed[path] = self.failures
