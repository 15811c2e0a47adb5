"""Which call may be sent again, after which failure, and when (rule H3). Pure decisions, no I/O.

A call that reads is repeated after every failure that may be temporary. One that changes something is
repeated if the attempt had no effect (nothing was sent, or the server's answer shows it), or if a repeat can
be distinguished from a second call:

- an append with a writer id: the store knows its number;
- an append at an expected offset: once applied, it cannot be applied there again. ``BadOffset`` after an
  attempt with unknown outcome proves that it was not applied only if the segment is longer than the offset,
  and too short to hold it: a shorter one may grow up to the offset before that attempt arrives. Otherwise the
  outcome stays unknown;
- an update of a table with a writer id, or that changes a row whose version it expects; ``TableConflict``
  after an unknown outcome of the latter may be about its own change, and of the former proves nothing if a
  row is there that should be absent: it may be removed before the first attempt arrives;
- a creation and a seal: their effect happens once. ``SegmentExists`` after an unknown outcome may be the
  call's own creation;
- the verbs of a transaction: each finds what an earlier attempt did, and gives the same answer (rule H17).

Everything else (a plain append, delete, truncate, merge, attributes, expire-writers) is never repeated after
an unknown outcome: a repeat could undo what others did in between. Once the outcome of an attempt is unknown,
only an answer that proves what happened is passed on; any other becomes ``OutcomeUnknown``.
"""

from __future__ import annotations

import enum
from random import Random

import attrs

from ....storage_backends.base.errors import (
    BadOffset,
    ClosedError,
    HistoryLost,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    OutOfOrder,
    SegmentNotFound,
    SegmentSealed,
    TableConflict,
    Throttled,
    TierlogError,
    TransactionEnded,
    TransactionNotFound,
    Unavailable,
    UnknownWriter,
)
from ....storage_backends.base.tables import ABSENT
from ....storage_backends.base.transactions import TransactionState
from ...kernel.backoff import Backoff

BACKOFF = Backoff(first=0.01, maximum=0.25)
"""Short: a failover takes a moment, and a refused connection costs almost nothing."""


class Repeat(enum.Enum):
    """What happens if the same call arrives twice."""

    READS = "reads"
    """It has no visible effect."""
    NUMBERED = "numbered"
    """An append with a writer id."""
    AT_OFFSET = "at-offset"
    """An append at an expected offset."""
    AT_VERSION = "at-version"
    """An update of a table that changes a row whose version it expects."""
    CREATES = "creates"
    SEALS = "seals"
    IDEMPOTENT = "idempotent"
    """A transaction's begin, stage or abort, a creation that may find the segment: the answer is the same as
    the first time."""
    COMMITS = "commits"
    """A transaction's commit: its tombstone, or its token, shows that it was done (rules T4, T5)."""
    NEVER = "never"
    """It would be applied a second time."""


class Kind(enum.Enum):
    """How an attempt failed."""

    REFUSED = "refused"
    """The answer is final."""
    LATER = "later"
    """Nothing was done; it may work later."""
    ELSEWHERE = "elsewhere"
    """Nothing was done; another host has the container."""
    NOT_SENT = "not-sent"
    """The request did not reach a server."""
    UNKNOWN = "unknown"
    """It may have been applied."""


ANSWERED = (Kind.LATER, Kind.ELSEWHERE)
"""A server answered that it did nothing. So a map that was asked for after it is fresh."""


@attrs.frozen
class Failure:
    kind: Kind
    error: TierlogError
    """What the call raises if no later attempt succeeds."""
    pause: float = 0.0
    """Seconds that the server asked to wait."""


@attrs.frozen
class Retry:
    """Send it again."""

    pause: float
    refresh: bool
    """Refresh the container map first."""
    doubt: bool
    """One of the attempts so far may have been applied."""


_PROOFS: dict[Repeat, tuple[type[TierlogError], ...]] = {
    # The store looks up a writer's number before anything else, so these prove that it was not applied (rule
    # C3).
    Repeat.NUMBERED: (
        OutOfOrder,
        SegmentSealed,
        BadOffset,
        InvalidArgument,
        TableConflict,
        UnknownWriter,
    ),
    Repeat.AT_OFFSET: (InvalidArgument,),
    Repeat.AT_VERSION: (InvalidArgument,),
    Repeat.CREATES: (InvalidArgument,),
    Repeat.SEALS: (InvalidArgument, SegmentNotFound),
    # Whatever an earlier attempt did, these are true of the transaction now.
    Repeat.IDEMPOTENT: (
        InvalidArgument,
        SegmentNotFound,
        SegmentSealed,
        TransactionEnded,
        TransactionNotFound,
    ),
    # Only an open transaction is refused for its parts or its target's seal. One that is not found may have
    # been committed before its target was deleted.
    Repeat.COMMITS: (InvalidArgument, BadOffset, SegmentSealed),
    Repeat.NEVER: (),
}
_MAY_PASS = (Throttled, Unavailable, ClosedError)


def kind_of(error: TierlogError) -> Kind:
    """The kind of a server's error. ``StorageFull`` is final: an operator has to make room."""
    if isinstance(error, NotOwner):
        return Kind.ELSEWHERE

    if isinstance(error, OutcomeUnknown):
        return Kind.UNKNOWN

    return Kind.LATER if isinstance(error, _MAY_PASS) else Kind.REFUSED


def is_too_much_at_once(failure: Failure) -> bool:
    """Whether a whole batch was refused because of one item, or of their sum: each append alone then gets its
    own answer."""
    return failure.kind is Kind.REFUSED and isinstance(failure.error, InvalidArgument)


def decide(
    repeat: Repeat, failure: Failure, *, doubt: bool, attempt: int, left: float, random: Random, size: int = 0
) -> Retry | TierlogError:
    """Send it again, or what to raise.

    ``doubt``: an earlier attempt may have been applied. ``attempt``: how many failed before this one.
    ``left``: seconds until the call's deadline. ``size``: of an append at an expected offset, its bytes.
    """
    if failure.kind is Kind.REFUSED:
        return _refusal(repeat, failure.error, size) if doubt else failure.error

    doubt = doubt or (failure.kind is Kind.UNKNOWN and repeat is not Repeat.READS)
    if doubt and repeat is Repeat.NEVER:
        return failure.error

    pause = max(failure.pause, BACKOFF.delay(attempt, random))
    if pause >= left:
        return given_up(failure.error, doubt=doubt)

    # Only backpressure proves that this is the right host; after any other failure the container may have
    # moved.
    return Retry(pause, not isinstance(failure.error, Throttled), doubt)


def _refusal(repeat: Repeat, error: TierlogError, size: int) -> TierlogError:
    """A final answer, after an attempt with unknown outcome."""
    # A row may be absent again, and an earlier attempt be applied then that is under way still.
    is_final = not (isinstance(error, TableConflict) and error.expected == ABSENT)
    if repeat is Repeat.READS or (is_final and isinstance(error, _PROOFS[repeat])):
        return error

    # R10: what an earlier attempt did was lost with its history.
    if isinstance(error, HistoryLost):
        return error

    # Whatever was appended to an aborted transaction is gone, and no commit can have been applied.
    if isinstance(error, TransactionEnded) and error.state == TransactionState.ABORTED.value:
        return error

    if (
        repeat is Repeat.AT_OFFSET
        and isinstance(error, BadOffset)
        # A shorter segment may grow up to the offset before an earlier attempt arrives.
        and error.given < error.expected < error.given + size
    ):
        return error

    return OutcomeUnknown(f"an earlier attempt may have been applied; then came: {error}")


def given_up(error: TierlogError, *, doubt: bool) -> TierlogError:
    """What a call raises whose last attempt failed with ``error``."""
    if doubt:
        return (
            error
            if isinstance(error, OutcomeUnknown)
            else OutcomeUnknown(f"an attempt may have been applied; then came: {error}")
        )

    # `NotOwner` and `ClosedError` would read as if they were about the caller's own store; the client only
    # found no owner that answers in time.
    return (
        Unavailable(f"no owner answered in time: {error}")
        if isinstance(error, (NotOwner, ClosedError))
        else error
    )
