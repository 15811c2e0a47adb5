"""Idempotent appends: the whole table of rule C3."""

from __future__ import annotations

from itertools import product

import pytest

from support.container_parts import NAME, Parts, append, by_writer, refused
from tierlog.storage_backends.base.errors import InvalidArgument, OutOfOrder

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


def test_a_new_writer_begins_at_any_event_number() -> None:
    parts = Parts()
    parts.create()

    assert parts.do(by_writer(b"a", 1000)) == 0
    assert parts.do(by_writer(b"b", -5, writer=b"other")) == 1


def test_a_writers_append_carries_events() -> None:
    parts = Parts()
    parts.create()
    refused(parts, append(NAME, b"", writer=b"w", first_event=3, event_count=0), InvalidArgument)
