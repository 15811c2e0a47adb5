"""The states of a log object, shared by every log of this package.

Rule W6: ``BROKEN`` and ``FENCED`` lead only to ``CLOSED``; recovery is a new object.
"""

from __future__ import annotations

import enum

from ...storage_backends.base.errors import ClosedError, NotOwner, TierlogError, Unavailable
from ...storage_backends.base.state_table import StateTable


class LogState(enum.Enum):
    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    APPENDING = "appending"
    INSPECTED = "inspected"
    BROKEN = "broken"
    FENCED = "fenced"
    CLOSED = "closed"
    # Of the enum itself it is a Python function, which the table would call four times for each group.
    __hash__ = object.__hash__


class LogEvent(enum.Enum):
    BEGIN_OPEN = "open"
    OPENED = "opened"
    INSPECTED = "inspected"
    BEGIN_APPEND = "append"
    APPENDED = "appended"
    BREAK = "break"
    FENCE = "fence"
    CLOSE = "close"
    __hash__ = object.__hash__


_LIVE = (LogState.OPENING, LogState.OPEN, LogState.APPENDING, LogState.INSPECTED)

STATES: StateTable[LogState, LogEvent] = StateTable(
    {
        (LogState.NEW, LogEvent.BEGIN_OPEN): LogState.OPENING,
        (LogState.OPENING, LogEvent.OPENED): LogState.OPEN,
        (LogState.OPENING, LogEvent.INSPECTED): LogState.INSPECTED,
        (LogState.OPEN, LogEvent.BEGIN_APPEND): LogState.APPENDING,
        (LogState.APPENDING, LogEvent.APPENDED): LogState.OPEN,
        **{(state, LogEvent.BREAK): LogState.BROKEN for state in _LIVE},
        **{(state, LogEvent.FENCE): LogState.FENCED for state in _LIVE},
        # A failure after the end changes nothing.
        **{
            (state, event): state
            for state in (LogState.BROKEN, LogState.FENCED, LogState.CLOSED)
            for event in (LogEvent.BREAK, LogEvent.FENCE)
        },
        # In every state, and again: descriptors are released whatever has happened before (W7).
        **{(state, LogEvent.CLOSE): LogState.CLOSED for state in LogState},
    }
)


_STEPS = STATES.steps
"""Without a call more for each append."""


class LogLifecycle:
    """The state of the log ``name``. An illegal call raises what its caller should act on: ``Unavailable``,
    ``NotOwner`` or ``ClosedError``; a call out of order is a bug and raises ``RuntimeError``."""

    __slots__ = ("_name", "_why", "state")

    def __init__(self, name: str) -> None:
        self._name = name
        self._why = ""
        self.state = LogState.NEW

    def step(self, event: LogEvent) -> None:
        after = _STEPS.get((self.state, event))
        if after is None:
            raise self._refusal(event.value)
        self.state = after

    def failed(self, error: BaseException) -> None:
        """Rule W6: any failure, a cancellation too, ends this owner."""
        # Later failures are consequences of the first one, which is the one to report.
        if self.state in _LIVE:
            self._why = str(error) or type(error).__name__
        self.step(LogEvent.FENCE if isinstance(error, NotOwner) else LogEvent.BREAK)

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
