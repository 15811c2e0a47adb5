"""The life of a log object, as a table; shared by every log in this package. Pure.

Owns: which call is legal when, and what an illegal one raises. Does not own: any I/O.

W6: ``BROKEN`` and ``FENCED`` have no way back but ``CLOSED``; recovery is a new object.
"""

from __future__ import annotations

import enum

from ...storage_backends.base.errors import ClosedError, NotOwner, TierlogError, Unavailable


class LogState(enum.Enum):
    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    APPENDING = "appending"
    INSPECTED = "inspected"
    BROKEN = "broken"
    FENCED = "fenced"
    CLOSED = "closed"


class LogStep(enum.Enum):
    BEGIN_OPEN = "open"
    OPENED = "opened"
    INSPECTED = "inspected"
    BEGIN_APPEND = "append"
    APPENDED = "appended"
    BREAK = "break"
    FENCE = "fence"
    CLOSE = "close"


_LIVE = (LogState.OPENING, LogState.OPEN, LogState.APPENDING, LogState.INSPECTED)

TRANSITIONS: dict[tuple[LogState, LogStep], LogState] = {
    (LogState.NEW, LogStep.BEGIN_OPEN): LogState.OPENING,
    (LogState.OPENING, LogStep.OPENED): LogState.OPEN,
    (LogState.OPENING, LogStep.INSPECTED): LogState.INSPECTED,
    (LogState.OPEN, LogStep.BEGIN_APPEND): LogState.APPENDING,
    (LogState.APPENDING, LogStep.APPENDED): LogState.OPEN,
    **{(state, LogStep.BREAK): LogState.BROKEN for state in _LIVE},
    **{(state, LogStep.FENCE): LogState.FENCED for state in _LIVE},
    # A failure that comes after the end changes nothing.
    **{
        (state, step): state
        for state in (LogState.BROKEN, LogState.FENCED, LogState.CLOSED)
        for step in (LogStep.BREAK, LogStep.FENCE)
    },
    **{(state, LogStep.CLOSE): LogState.CLOSED for state in LogState},
}


class LogLifecycle:
    """One log's state; ``name`` goes into messages."""

    __slots__ = ("_name", "_why", "state")

    def __init__(self, name: str) -> None:
        self._name = name
        self._why = ""
        self.state = LogState.NEW

    def step(self, step: LogStep) -> None:
        after = TRANSITIONS.get((self.state, step))
        if after is None:
            raise self._refusal(step.value)
        self.state = after

    def failed(self, error: BaseException) -> None:
        """W6: whatever went wrong, a cancellation too, ends this owner."""
        if self.state in _LIVE:
            self._why = str(error) or type(error).__name__
        self.step(LogStep.FENCE if isinstance(error, NotOwner) else LogStep.BREAK)

    def require(self, verb: str, *states: LogState) -> None:
        """Raise unless the state is one of ``states``."""
        if self.state not in states:
            raise self._refusal(verb)

    def _refusal(self, verb: str) -> TierlogError | RuntimeError:
        if self.state is LogState.BROKEN:
            return Unavailable(
                f"log {self._name} stopped after a failure ({self._why}); open it again to recover"
            )
        if self.state is LogState.FENCED:
            return NotOwner(self._why)
        if self.state is LogState.CLOSED:
            return ClosedError(f"log {self._name} is closed")
        return RuntimeError(f"log {self._name}: {verb} is not possible while it is {self.state.value}")
