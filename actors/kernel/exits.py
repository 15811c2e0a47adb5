"""The reason with which an actor ends, and which of them may be restarted (rules A8 and A9)."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import overload

from msgspec import Struct

from ...storage_backends.base.errors import DataCorruption, NotOwner, StoreMismatch


class ExitKind(enum.Enum):
    CLEAN = "clean"
    """It was stopped or cancelled."""
    FENCED = "fenced"
    """Another owner took over. Terminal until a newer order starts a new one."""
    FAILED = "failed"
    """An operation failed. Recovery is the way back."""
    FULL = "full"
    """There was no room to begin. Terminal: room does not come back by itself, and each attempt may cost
    some."""
    CORRUPT = "corrupt"
    """Stored data is not what was written, or belongs to another store. Terminal: a restart would fail in the
    same place."""
    POISONED = "poisoned"
    """A synchronous step was interrupted, so memory cannot be trusted (rule C5). Recovery is the way back."""


RESTARTABLE: Mapping[ExitKind, bool] = {
    ExitKind.CLEAN: False,
    ExitKind.FENCED: False,
    ExitKind.FAILED: True,
    ExitKind.FULL: False,
    ExitKind.CORRUPT: False,
    ExitKind.POISONED: True,
}
"""Which exits a supervisor may answer with a restart."""

# Without FULL, which no exception stands for: only the beginning of a container reports it.
_SEVERITY = (ExitKind.CLEAN, ExitKind.FAILED, ExitKind.POISONED, ExitKind.FENCED, ExitKind.CORRUPT)


class ActorExit(Struct, frozen=True):
    """Why an actor ended. Its ``run`` returns it."""

    kind: ExitKind
    error: BaseException | None = None
    detail: str = ""

    def __str__(self) -> str:
        # For people: of a group, one error says more than how its tasks were nested.
        leaf = first_leaf(self.error)
        parts = [self.kind.value, self.detail, *([] if leaf is None else [type(leaf).__name__, str(leaf)])]
        return ": ".join(part for part in parts if part)


CLEAN_EXIT = ActorExit(ExitKind.CLEAN)


def exit_kind_of(error: BaseException) -> ExitKind:
    """The exit that an escaped exception stands for. Of a group, the gravest counts."""
    if isinstance(error, BaseExceptionGroup):
        return max((exit_kind_of(inner) for inner in error.exceptions), key=_SEVERITY.index)

    if isinstance(error, NotOwner):
        return ExitKind.FENCED

    if isinstance(error, (DataCorruption, StoreMismatch)):
        return ExitKind.CORRUPT

    # Out of memory or interrupted, perhaps in the middle of a synchronous step.
    return (
        ExitKind.FAILED
        if isinstance(error, Exception) and not isinstance(error, MemoryError)
        else ExitKind.POISONED
    )


def exit_of(error: BaseException, detail: str = "") -> ActorExit:
    return ActorExit(exit_kind_of(error), error, detail)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group and in its inner groups, in order. An error that is not a group is its own
    leaf."""
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
    """The first error in a group, which stands for all in messages. None gives None."""
    return None if error is None else next(leaves(error))
