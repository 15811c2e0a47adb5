"""The callers of ``flush``, and what answers them (rules F4, F7, J5). Sync.

A call is answered once a cycle is published whose cut is at or after the call and that holds nothing back. It
fails with the error of an attempt that began after the call: to flush a segment, or to publish a cycle."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from ...storage_backends.base.errors import TierlogError
from ..kernel.reply import Reply


class _Caller(Struct, frozen=True, eq=False):
    sequence: int
    """The newest operation at the call."""
    attempt: int
    """The newest attempt that began before the call."""
    reply: Reply[None] = field(default_factory=Reply)


class FlushCallers:
    def __init__(self) -> None:
        self._waiting: list[_Caller] = []
        self._attempts = 0
        self._stopped: TierlogError | None = None

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def add(self, sequence: int) -> Reply[None]:
        """Somebody calls; ``sequence``: the newest operation. Raises the error of ``stop``."""
        if self._stopped is not None:
            raise self._stopped

        caller = _Caller(sequence, self._attempts)
        self._waiting.append(caller)
        return caller.reply

    def begin(self) -> int:
        """An attempt begins; returns its number."""
        self._attempts += 1
        return self._attempts

    def fail(self, error: TierlogError, attempt: int) -> None:
        """An attempt failed: those who called before it get its error."""
        for caller in self._taken(lambda caller: caller.attempt < attempt):
            caller.reply.fail(error)

    def published(self, cut: int) -> None:
        """Everything up to ``cut`` is in long-term storage."""
        for caller in self._taken(lambda caller: caller.sequence <= cut):
            caller.reply.resolve(None)

    def stop(self, error: TierlogError) -> None:
        """Fail those who wait, and later ones."""
        self._stopped = error
        for caller in self._taken(lambda caller: True):
            caller.reply.fail(error)

    def _taken(self, is_taken: Callable[[_Caller], bool]) -> list[_Caller]:
        taken = [caller for caller in self._waiting if is_taken(caller)]
        self._waiting = [caller for caller in self._waiting if not is_taken(caller)]
        return taken
