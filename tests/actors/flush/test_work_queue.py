"""The order of deferred work, and what it costs (rule F6)."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest

from tierlog.actors.flush.work_queue import WorkQueue
from tierlog.storage_backends.segments.records import DeferredWorkKind, DeferredWorkRecord


def work(segment: int, kind: DeferredWorkKind = DeferredWorkKind.TRUNCATE) -> DeferredWorkRecord:
    return DeferredWorkRecord(kind, segment)


def queue_of(*items: DeferredWorkRecord) -> WorkQueue:
    queue = WorkQueue()
    for item in items:
        queue.put(item)
    return queue


def drain(queue: WorkQueue, now: float = 0.0) -> list[DeferredWorkRecord]:
    found = []
    while (item := queue.first(now)) is not None:
        found.append(item)
        queue.drop(item.key)
    return found


def test_the_order_is_kind_then_segment() -> None:
    delete = work(9, DeferredWorkKind.DELETE)
    assert drain(queue_of(work(2), delete, work(1))) == [delete, work(1), work(2)]


def test_what_failed_waits_for_its_time_and_then_comes_last() -> None:
    queue = queue_of(work(1), work(2))
    queue.failed(work(1).key, not_before=10.0)
    assert (queue.first(9.9), queue.failures(work(1).key)) == (work(2), 1)
    assert drain(queue, now=10.0) == [work(2), work(1)]


def test_success_makes_up_for_failures() -> None:
    queue = queue_of(work(1), work(2))
    queue.failed(work(1).key, not_before=10.0)
    assert queue.first(10.0) == work(2)
    queue.succeeded(work(1).key)
    assert (queue.first(10.0), queue.failures(work(1).key)) == (work(1), 0)


def test_the_earliest_time_is_that_of_what_waits_if_nothing_is_ready() -> None:
    queue = queue_of(work(1), work(2))
    assert queue.earliest(3.0) == 3.0
    queue.failed(work(1).key, not_before=10.0)
    queue.failed(work(2).key, not_before=8.0)
    assert queue.earliest(3.0) == 8.0
    queue.drop(work(2).key)
    assert queue.earliest(3.0) == 10.0
    queue.drop(work(1).key)
    assert queue.earliest(3.0) is None


def test_what_is_left_of_an_item_replaces_it_in_its_place() -> None:
    queue = queue_of(work(1), work(2))
    left = DeferredWorkRecord(DeferredWorkKind.TRUNCATE, 1, index_offset=5)
    queue.put(left)
    assert (len(queue), drain(queue)) == (2, [left, work(2)])


class Counted(int):
    """A segment id that counts how often it is compared."""

    comparisons: ClassVar[Counter[str]] = Counter()

    def __lt__(self, other: int) -> bool:
        self.comparisons["<"] += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        self.comparisons["=="] += 1
        return isinstance(other, int) and int(self) == int(other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("fails", [False, True])
def test_f6_the_next_of_50_000_items_costs_a_few_comparisons(fails: bool) -> None:
    """They were sorted at every step once: about 40,000 times as many."""
    count = 50_000
    queue = queue_of(*(work(Counted(number * 7919 % count)) for number in range(count)))
    Counted.comparisons.clear()
    for number in range(1_000):
        item = queue.first(0.0)
        assert item is not None
        if fails:
            queue.failed(item.key, not_before=1.0 + number)
        else:
            queue.drop(item.key)

    assert Counted.comparisons.total() < 1_000 * 100
