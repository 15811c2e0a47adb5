"""What may be resent, after which failure, and which error is raised instead."""

from __future__ import annotations

from random import Random

import pytest

import tierlog
from tierlog import (
    BadOffset,
    OutcomeUnknown,
    SegmentExists,
    SegmentNotFound,
    SegmentSealed,
    StorageFull,
    Throttled,
    TierlogError,
    Unavailable,
)
from tierlog.actors.gateway.client.retries import (
    BACKOFF,
    Failure,
    Kind,
    Repeat,
    Retry,
    decide,
    is_too_much_at_once,
    kind_of,
)
from tierlog.storage_backends.base.errors import TransactionEnded, TransactionNotFound

UNKNOWN = Failure(Kind.UNKNOWN, OutcomeUnknown("broken"))
CHANGING = [repeat for repeat in Repeat if repeat is not Repeat.READS]
ABORTED, COMMITTED = TransactionEnded("x", state="aborted"), TransactionEnded("x", state="committed")
REPEATABLE = [repeat for repeat in CHANGING if repeat is not Repeat.NEVER]


def verdict(
    repeat: Repeat,
    failure: Failure,
    *,
    doubt: bool = False,
    attempt: int = 0,
    left: float = 30.0,
    size: int = 0,
) -> Retry | TierlogError:
    return decide(repeat, failure, doubt=doubt, attempt=attempt, left=left, random=Random(1), size=size)


def again(repeat: Repeat, failure: Failure, *, doubt: bool = False, attempt: int = 0) -> Retry:
    found = verdict(repeat, failure, doubt=doubt, attempt=attempt)
    assert isinstance(found, Retry)
    return found


@pytest.mark.parametrize("repeat", Repeat)
@pytest.mark.parametrize("kind", [Kind.LATER, Kind.ELSEWHERE, Kind.NOT_SENT])
def test_calls_without_effect_are_always_resent(repeat: Repeat, kind: Kind) -> None:
    assert not again(repeat, Failure(kind, Unavailable("x"))).doubt


@pytest.mark.parametrize("repeat", REPEATABLE)
def test_an_unknown_outcome_is_remembered_where_a_repeat_is_recognised(
    repeat: Repeat,
) -> None:
    assert again(repeat, UNKNOWN).doubt


@pytest.mark.parametrize("repeat", Repeat)
def test_a_refusal_with_a_known_outcome_is_raised_unchanged(repeat: Repeat) -> None:
    error = SegmentSealed("x")
    assert verdict(repeat, Failure(Kind.REFUSED, error)) is error


@pytest.mark.parametrize(
    "repeat, error, is_proof",
    [
        (Repeat.CREATES, SegmentExists("x"), False),
        (Repeat.SEALS, SegmentNotFound("x"), True),
        (Repeat.NUMBERED, SegmentSealed("x"), True),
        (Repeat.NUMBERED, tierlog.OutOfOrder("x"), True),
        (Repeat.NUMBERED, tierlog.UnknownWriter("x"), True),
        (Repeat.NUMBERED, BadOffset("x", expected=9, given=3), True),
        (Repeat.NUMBERED, SegmentNotFound("x"), False),
        (Repeat.AT_OFFSET, BadOffset("x", expected=2, given=3), False),
        (Repeat.AT_OFFSET, BadOffset("x", expected=6, given=3), True),
        (Repeat.AT_OFFSET, BadOffset("x", expected=7, given=3), False),
        (Repeat.AT_OFFSET, SegmentSealed("x"), False),
        (Repeat.AT_OFFSET, ABORTED, True),
        (Repeat.AT_OFFSET, COMMITTED, False),
        (Repeat.NUMBERED, ABORTED, True),
        (Repeat.NUMBERED, COMMITTED, False),
        (Repeat.IDEMPOTENT, ABORTED, True),
        (Repeat.IDEMPOTENT, COMMITTED, True),
        (Repeat.IDEMPOTENT, TransactionNotFound("x"), True),
        (Repeat.IDEMPOTENT, SegmentNotFound("x"), True),
        (Repeat.IDEMPOTENT, StorageFull("x"), False),
        (Repeat.COMMITS, ABORTED, True),
        (Repeat.COMMITS, COMMITTED, False),
        (Repeat.COMMITS, BadOffset("x", expected=9, given=3), True),
        (Repeat.COMMITS, SegmentSealed("x"), True),
        (Repeat.COMMITS, TransactionNotFound("x"), False),
        (Repeat.COMMITS, SegmentNotFound("x"), False),
    ],
)
def test_with_an_unknown_outcome_only_a_proof_is_raised_unchanged(
    repeat: Repeat, error: TierlogError, is_proof: bool
) -> None:
    """An append of 4 bytes at offset 3: a segment of 6 bytes cannot hold it; one of 7 may, one of 2 later."""
    found = verdict(repeat, Failure(Kind.REFUSED, error), doubt=True, size=4)

    assert (found is error) == is_proof
    assert is_proof or isinstance(found, OutcomeUnknown)


@pytest.mark.parametrize("repeat", CHANGING)
def test_giving_up_with_an_unknown_outcome_reports_it(repeat: Repeat) -> None:
    found = verdict(repeat, Failure(Kind.LATER, Throttled("x")), doubt=repeat is not Repeat.NEVER, left=0.0)

    assert isinstance(found, Throttled if repeat is Repeat.NEVER else OutcomeUnknown)


def test_pauses_grow_to_a_bound() -> None:
    pauses = [
        again(Repeat.READS, Failure(Kind.NOT_SENT, Unavailable("x")), attempt=attempt).pause
        for attempt in range(40)
    ]

    assert 0 < pauses[0] <= BACKOFF.first
    assert BACKOFF.maximum / 2 <= pauses[-1] <= BACKOFF.maximum


def test_the_map_is_refreshed_when_the_owner_may_have_changed() -> None:
    refreshes = {
        kind: again(Repeat.READS, Failure(kind, Unavailable("x"))).refresh
        for kind in Kind
        if kind is not Kind.REFUSED
    }

    assert refreshes == dict.fromkeys(refreshes, True)
    assert not again(Repeat.READS, Failure(Kind.LATER, Throttled("x"))).refresh


def test_an_owner_that_was_not_found_is_no_fenced_store() -> None:
    """``NotOwner`` would tell an app that its own store is lost."""
    for error in (tierlog.NotOwner("x"), tierlog.ClosedError("x")):
        assert type(verdict(Repeat.NEVER, Failure(kind_of(error), error), left=0.0)) is Unavailable


def test_kinds_of_errors() -> None:
    kinds: dict[Kind, list[TierlogError]] = {
        Kind.ELSEWHERE: [tierlog.NotOwner("x")],
        Kind.LATER: [Throttled("x"), Unavailable("x"), tierlog.ClosedError("x")],
        Kind.UNKNOWN: [OutcomeUnknown("x")],
        Kind.REFUSED: [
            StorageFull("x"),
            tierlog.OutOfOrder("x"),
            SegmentNotFound("x"),
            tierlog.DataCorruption("x"),
        ],
    }

    assert {kind: [kind_of(error) for error in errors] for kind, errors in kinds.items()} == {
        kind: [kind] * len(errors) for kind, errors in kinds.items()
    }


def test_only_a_final_argument_error_splits_a_batch() -> None:
    assert is_too_much_at_once(Failure(Kind.REFUSED, tierlog.InvalidArgument("x")))
    assert not is_too_much_at_once(Failure(Kind.REFUSED, StorageFull("x")))
    assert not is_too_much_at_once(Failure(Kind.UNKNOWN, OutcomeUnknown("x")))
