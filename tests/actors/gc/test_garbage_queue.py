"""The names that wait for deletion: what is taken, when, and what it costs."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.gc.garbage_queue import GarbageQueue
from tierlog.actors.gc.rules import Garbage

NAMES = st.sampled_from("abcdef")
GARBAGE = st.builds(Garbage, NAMES, st.integers(0, 9).map(float))


@given(st.lists(GARBAGE | NAMES), st.integers(0, 9), st.integers(1, 8))
def test_g2_what_is_taken_is_all_whose_delay_is_over(
    changes: list[Garbage | str], now: int, limit: int
) -> None:
    """The last entry of a name counts, and what was dropped does not."""
    queue, entries = GarbageQueue(), dict[str, Garbage]()
    for change in changes:
        if isinstance(change, str):
            queue.drop(change)
            entries.pop(change, None)
        else:
            queue.put(change)
            entries[change.name] = change

    taken: list[Garbage] = []
    while queue.next_due() <= now:
        some = queue.take(now, limit)
        assert len(some) <= limit
        taken += some
    expected = [each for each in entries.values() if each.due <= now]
    assert sorted(taken, key=repr) == sorted(expected, key=repr)
    assert set(queue) == entries.keys(), "taken names are known until they are dropped"
    assert queue.next_due() > now


def test_the_cost_of_a_step_is_what_it_moves() -> None:
    """It does not visit all names: that took 50 ms at 100,000."""
    queue = GarbageQueue()
    for number in range(100_000):
        queue.put(Garbage(f"n{number}", 60.0))
    seconds = []
    for _ in range(3):  # a hypervisor's pauses count as the thread's time
        begin = time.thread_time()
        for _ in range(300):
            assert (queue.take(59.0, 1_000), queue.next_due()) == ([], 60.0)
        seconds.append(time.thread_time() - begin)
    assert min(seconds) < 0.3
