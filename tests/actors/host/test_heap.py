"""A host returns memory to the system after it has held a lot for its clients."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tierlog.actors.host.heap import BUSY_DELAY, IDLE_DELAY, PEAK_BYTES, HeapTrimmer, trim_heap

MIB = 1 << 20


class World:
    def __init__(self) -> None:
        self.held, self.requests, self.now, self.trimmed = 0, 0, 0.0, list[float]()
        self.trimmer = HeapTrimmer(
            lambda: self.held, lambda: self.requests, lambda: self.now, lambda: self.trimmed.append(self.now)
        )

    def run(self, seconds: float, held: int, requests: int = 0) -> None:
        self.held = held
        for _ in range(int(seconds)):
            self.requests += requests
            self.trimmer.check()
            self.now += 1


def test_the_heap_is_trimmed_once_after_a_lot_was_freed() -> None:
    world = World()
    world.run(10, PEAK_BYTES)
    assert world.trimmed == []
    world.run(1000, 0)
    assert world.trimmed == [10 + IDLE_DELAY]
    world.run(1, 2 * PEAK_BYTES)
    world.run(1000, PEAK_BYTES // 4)
    assert len(world.trimmed) == 2


@pytest.mark.parametrize(("peak", "rest"), [(PEAK_BYTES - 1, 0), (4 * PEAK_BYTES, 2 * PEAK_BYTES)])
def test_the_heap_is_not_trimmed_while_little_is_free(peak: int, rest: int) -> None:
    world = World()
    world.run(1, peak)
    world.run(1000, rest)
    assert world.trimmed == []


def test_memory_that_is_used_again_soon_is_kept() -> None:
    world = World()
    for _ in range(100):
        world.run(IDLE_DELAY, PEAK_BYTES)
        world.run(IDLE_DELAY, 0)
    assert world.trimmed == []


def test_the_heap_is_trimmed_between_two_requests_that_are_a_check_apart() -> None:
    """Trimming 280 MB takes 10 to 20 ms, in which nothing else can allocate."""
    world = World()
    world.run(10, PEAK_BYTES, requests=1)
    world.run(100, 0, requests=1)
    assert world.trimmed == []
    world.run(1, 0)
    assert world.trimmed == [110]


def test_a_host_that_is_never_idle_trims_in_the_end() -> None:
    world = World()
    world.run(1, PEAK_BYTES, requests=5)
    world.run(1000, 0, requests=5)
    assert world.trimmed == [1 + BUSY_DELAY]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc only")
def test_trimming_returns_freed_blocks_below_one_in_use() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096

    small = 100_000  # from the heap, not mapped one by one
    blocks = [bytes(bytearray(small)) for _ in range(64 * MIB // small)]
    last = bytes(bytearray(small))
    full = resident()
    del blocks
    trim_heap()
    assert full - resident() > 32 * MIB
    assert len(last) == small
