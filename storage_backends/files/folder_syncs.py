"""Failed syncs of folders, for the other programs of the process (rule W11).

A sync that succeeds need not write the names that an earlier, failed one lost. So a program that made a name
in a folder, which another program then failed to sync, gets an error from its own sync too.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import attrs


@attrs.define(eq=False, repr=False)
class _Turn:
    lock: threading.Lock = attrs.field(factory=threading.Lock)
    users: int = 0


class FolderSyncs:
    """Syncs each folder for one program at a time, and remembers the ones that failed."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: dict[str, _Turn] = {}
        self._failed: dict[str, int] = {}
        self.failures = 0
        """How many syncs have failed; a program notes it when it begins."""

    def sync(self, path: str, began: int, sync: Callable[[], None]) -> None:
        """Call ``sync``. Raises ``OSError`` too if a sync of the folder failed since the program began, when
        ``failures`` was ``began``."""
        with self._guard:
            turn = self._turns.setdefault(path, _Turn())
            turn.users += 1
        try:
            with turn.lock:
                self.check(path, began)
                try:
                    sync()
                except OSError:
                    self.failed(path)
                    raise
        finally:
            with self._guard:
                turn.users -= 1
                if not turn.users:
                    del self._turns[path]

    def check(self, path: str, began: int) -> None:
        if self._failed.get(path, 0) > began:
            raise OSError(errno.EIO, "another sync of the folder failed meanwhile", path)

    def failed(self, path: str) -> None:
        with self._guard:
            self.failures += 1
            self._failed[path] = self.failures
