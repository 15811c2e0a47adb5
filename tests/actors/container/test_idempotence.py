"""Idempotent appends: the whole table of rule C3."""

from __future__ import annotations

from itertools import product

import pytest

from support.container_parts import NAME, Parts, append, by_writer, refused
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.writers import ExpireWritersRequest, LastEventRequest
from tierlog.storage_backends.base.errors import InvalidArgument, OutOfOrder, SegmentSealed, UnknownWriter

LAST_FIRST, LAST = 4, 6
"""The writer's latest append in the tables below: events 4 to 6, after event 3."""


def writer_at_6() -> Parts:
    parts = Parts()
    parts.create()
    parts.do(by_writer(b"abc", 1, 3), by_writer(b"def", LAST_FIRST, LAST))
    return parts


def expected_outcome(first: int, count: int, previous: int | None) -> object:
    """Rule C3 in another form: by the position of the range of events."""
    last = first + count - 1
    if last <= LAST:
        return 3 if (first, last) == (LAST_FIRST, LAST) else None
    if first <= LAST:
        return InvalidArgument
    return 6 if (first - 1 if previous is None else previous) == LAST else OutOfOrder


@pytest.mark.parametrize(
    ("first", "count", "previous"),
    [
        (first, count, previous)
        for first, count, previous in product(range(10), range(1, 5), [None, *range(9)])
        if previous is None or previous < first
    ],
)
def test_the_table_of_idempotent_appends(first: int, count: int, previous: int | None) -> None:
    """C3: applied only right behind the predecessor it names, a repeat if all of it was applied, refused
    otherwise."""
    parts = writer_at_6()
    request = by_writer(b"x" * count, first, first + count - 1, previous_event=previous)
    outcome = expected_outcome(first, count, previous)
    if isinstance(outcome, type):
        refused(parts, request, outcome)
        return

    assert parts.do(request) == outcome
    applied = outcome == 6
    assert parts.segment().length == 6 + count * applied
    assert parts.segment().writers[b"w"].last_event == (first + count - 1 if applied else LAST)


def test_events_that_overtook_each_other_are_all_applied_once() -> None:
    """The later event is refused until its predecessor is applied; a repeat then succeeds."""
    parts = Parts()
    parts.create()
    parts.do(by_writer(b"7", 7))
    early = refused(parts, by_writer(b"9", 9), OutOfOrder)
    parts.do(by_writer(b"8", 8))
    parts.do(by_writer(b"9", 9))

    assert (early.retryable, early.last_event_number) == (True, 7)
    assert parts.content(parts.segment().sid) == b"789"


def test_a_new_writer_begins_at_any_event_number() -> None:
    parts = Parts()
    parts.create()

    assert parts.do(by_writer(b"a", 1000)) == 0
    assert parts.do(by_writer(b"b", -5, writer=b"other")) == 1


def test_a_new_writer_cannot_name_a_predecessor() -> None:
    """C3: nothing is known of that event, so this is not taken for a new writer."""
    parts = Parts()
    parts.create()
    refused(parts, by_writer(b"a", 7, previous_event=6), UnknownWriter)


def test_writers_and_segments_do_not_share_numbers() -> None:
    parts = Parts()
    parts.create("a", "b")
    parts.do(by_writer(b"x", 5, name="a"))

    assert parts.do(by_writer(b"y", 1, name="b")) == 0
    assert parts.do(by_writer(b"y", 1, name="a", writer=b"v")) == 1


def test_a_repeat_is_acked_even_if_the_segment_is_sealed_or_the_offset_is_wrong() -> None:
    """A lost reply must not turn into an error once the append was applied."""
    parts = writer_at_6()
    parts.do(SealRequest(NAME))

    assert parts.do(by_writer(b"def", 4, 6, expected_offset=3)) == 3
    assert parts.do(by_writer(b"c", 3)) is None
    refused(parts, by_writer(b"g", 7), SegmentSealed)


def test_an_append_that_names_the_last_event_may_leave_a_gap() -> None:
    parts = writer_at_6()

    assert parts.do(by_writer(b"x", 100, previous_event=6)) == 6
    assert parts.do(LastEventRequest(NAME, b"w")) == 100


def test_a_writers_append_carries_events() -> None:
    parts = Parts()
    parts.create()
    refused(parts, append(NAME, b"", writer=b"w", first_event=3, event_count=0), InvalidArgument)


def test_an_expired_writer_never_starts_afresh_silently() -> None:
    """C3: expiry is explicit, and the next append fails by it."""
    parts = writer_at_6()

    assert parts.do(ExpireWritersRequest(NAME, [b"w", b"w", b"unknown"])) == 1
    refused(parts, by_writer(b"g", 7), UnknownWriter)
    refused(parts, by_writer(b"a", 1), UnknownWriter)
    assert parts.do(LastEventRequest(NAME, b"w")) is None


def test_expiring_unknown_writers_changes_nothing() -> None:
    parts = writer_at_6()

    assert parts.operations(ExpireWritersRequest(NAME, [b"unknown"])) == ([], 0)
