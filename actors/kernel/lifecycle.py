"""States as tables, and the reason with which an actor ends.

Owns: ``StateTable`` and the ``Lifecycle`` that walks it, ``ActorExit`` and the table of exits that may be
restarted, the leaves of an exception group. Does not own: any actor's own table (it lies beside the actor),
nor the restarting (``supervision.py``).

Rules upheld: A7 (one variable per state, changed only along the table; an illegal step is a bug and loud), A8
(an actor ends with a reason), A9 (fenced and corrupt are terminal).

Cancellation: a cancelled ``wait_for`` leaves no trace.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

import anyio
import attrs

from ...storage_backends.base.errors import DataCorruption, NotOwner, StoreMismatch

S = TypeVar("S", bound=enum.Enum)


class IllegalTransition(RuntimeError):
    """A step that the table does not have: a bug in the actor."""


class Unreachable(RuntimeError):
    """Somebody waits for states that cannot come any more; the message carries the reason of the current
    one."""


def _as_sets(transitions: Mapping[S, Iterable[S]]) -> dict[S, frozenset[S]]:
    return {state: frozenset(targets) for state, targets in transitions.items()}


@attrs.frozen
class StateTable(Generic[S]):
    """All states of a machine and, for each, the states that may follow. A state without successors is an
    end."""

    states: type[S]
    transitions: Mapping[S, frozenset[S]] = attrs.field(converter=_as_sets)

    def __attrs_post_init__(self) -> None:
        missing = [state.name for state in self.states if state not in self.transitions]
        if missing:
            raise ValueError(f"{self.states.__name__}: no transitions given for {', '.join(missing)}")

    def allows(self, old: S, new: S) -> bool:
        return new in self.transitions[old]

    def reachable(self, start: S) -> frozenset[S]:
        """``start`` and every state that can come after it."""
        seen = {start}
        frontier = [start]
        while frontier:
            following = self.transitions[frontier.pop()] - seen
            seen |= following
            frontier.extend(following)
        return frozenset(seen)


@attrs.frozen
class LifecycleStatistics:
    state: str
    reason: str
    steps: int


class _Watcher(Generic[S]):
    __slots__ = ("event", "hit", "wanted")

    def __init__(self, wanted: frozenset[S]) -> None:
        self.wanted = wanted
        self.event = anyio.Event()
        self.hit: S | None = None


class Lifecycle(Generic[S]):
    """One machine: its state, why it is in it, and those who wait for another."""

    __slots__ = ("_on_step", "_reason", "_state", "_steps", "_table", "_watchers")

    def __init__(
        self, table: StateTable[S], initial: S, on_step: Callable[[S, S, object], None] | None = None
    ) -> None:
        self._table = table
        self._state = initial
        self._reason: object = None
        self._steps = 0
        self._watchers: list[_Watcher[S]] = []
        self._on_step = on_step

    def __repr__(self) -> str:
        return f"<Lifecycle {self._state.name}{self._because()}>"

    def _because(self) -> str:
        return f" because {self._reason!r}" if self._reason is not None else ""

    @property
    def state(self) -> S:
        return self._state

    @property
    def reason(self) -> Any:
        """What the last step gave as its reason: an ``ActorExit``, an error, a text, or None."""
        return self._reason

    def go(self, new: S, reason: object = None) -> None:
        """Step to ``new``; raises ``IllegalTransition`` and changes nothing if the table does not allow
        it."""
        old = self._state
        if not self._table.allows(old, new):
            raise IllegalTransition(
                f"{type(old).__name__}: {old.name} -> {new.name} is not in the table{self._because()}"
            )

        self._state = new
        self._reason = reason
        self._steps += 1
        self._notify(new)
        if self._on_step is not None:
            self._on_step(old, new, reason)

    def _notify(self, new: S) -> None:
        reachable = self._table.reachable(new) if self._watchers else frozenset()
        for watcher in self._watchers:
            if watcher.hit is None and new in watcher.wanted:
                watcher.hit = new
                watcher.event.set()
            elif not watcher.wanted & reachable:
                watcher.event.set()

    async def wait_for(self, *states: S) -> S:
        """Wait until one of ``states`` is entered and return it, also if it has been left again meanwhile.

        Raises ``Unreachable`` as soon as none of them can come any more.
        """
        wanted = frozenset(states)
        if self._state in wanted:
            return self._state

        self._check_reachable(wanted)
        watcher = _Watcher(wanted)
        self._watchers.append(watcher)
        try:
            await watcher.event.wait()
        finally:
            self._watchers.remove(watcher)

        if watcher.hit is None:
            self._check_reachable(wanted)
            raise AssertionError("a watcher is woken only by a wanted state, or when none is reachable")
        return watcher.hit

    def _check_reachable(self, wanted: frozenset[S]) -> None:
        if not wanted & self._table.reachable(self._state):
            names = ", ".join(sorted(state.name for state in wanted))
            raise Unreachable(f"{names} cannot follow {self._state.name}{self._because()}")

    def statistics(self) -> LifecycleStatistics:
        return LifecycleStatistics(
            state=self._state.name,
            reason="" if self._reason is None else str(self._reason),
            steps=self._steps,
        )


# --- how actors end -----------------------------------------------------------------------------


class ExitKind(enum.Enum):
    CLEAN = "clean"
    """It was told to stop, and everything is as it should be."""
    FENCED = "fenced"
    """Another owner took over. Terminal until somebody with newer orders starts a new one."""
    FAILED = "failed"
    """An operation failed. Recovery is the way back."""
    CORRUPT = "corrupt"
    """Stored data is not what was written, or not this store's. Terminal: a restart would fail in the same
    place."""
    POISONED = "poisoned"
    """A sync step was torn, so memory cannot be trusted (rule C5). Recovery is the way back."""


RESTARTABLE: Mapping[ExitKind, bool] = {
    ExitKind.CLEAN: False,
    ExitKind.FENCED: False,
    ExitKind.FAILED: True,
    ExitKind.CORRUPT: False,
    ExitKind.POISONED: True,
}
"""Which exits a supervisor may answer with a restart."""

_SEVERITY = (ExitKind.CLEAN, ExitKind.FAILED, ExitKind.POISONED, ExitKind.FENCED, ExitKind.CORRUPT)


@attrs.frozen
class ActorExit:
    """Why an actor ended; its parent reads it."""

    kind: ExitKind
    error: BaseException | None = None
    detail: str = ""

    def __str__(self) -> str:
        parts = [self.kind.value, self.detail, repr(self.error) if self.error is not None else ""]
        return ": ".join(part for part in parts if part)


CLEAN_EXIT = ActorExit(ExitKind.CLEAN)


def exit_kind_of(error: BaseException) -> ExitKind:
    """The exit that an escaped exception stands for; of a group, its gravest."""
    if isinstance(error, BaseExceptionGroup):
        return max((exit_kind_of(inner) for inner in error.exceptions), key=_SEVERITY.index)

    if isinstance(error, NotOwner):
        return ExitKind.FENCED

    if isinstance(error, (DataCorruption, StoreMismatch)):
        return ExitKind.CORRUPT

    # Out of memory or interrupted: it may have struck in the middle of a sync step.
    return (
        ExitKind.FAILED
        if isinstance(error, Exception) and not isinstance(error, MemoryError)
        else ExitKind.POISONED
    )


def exit_of(error: BaseException, detail: str = "") -> ActorExit:
    return ActorExit(exit_kind_of(error), error, detail)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors that a group holds, those of its inner groups among them, in order; an error that is no
    group is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


@overload
def first_leaf(error: BaseException) -> BaseException: ...
@overload
def first_leaf(error: None) -> None: ...
@overload
def first_leaf(error: BaseException | None) -> BaseException | None: ...
def first_leaf(error: BaseException | None) -> BaseException | None:
    """What to tell of an error: of a group, the first of its leaves. None, where nothing failed, stays
    None."""
    return None if error is None else next(leaves(error))
