"""The tail cache: coalescing, pinned bytes, eviction, re-logged data; checked against a model of single
bytes."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.read.log_extents import LogExtent
from tierlog.actors.read.tail_cache import BLOCK_BYTES, BLOCK_OVERHEAD, TailCache

SID = 7
KIB = 1 << 10


def cache_with(
    *appends: tuple[int, bytes], flushed: int = 0, limit: int = 1 << 30, spills: bool = False
) -> TailCache:
    """Each append is in a group of its own, from 1 on."""
    cache = TailCache(limit, window_of if spills else None)
    cache.open_segment(SID, flushed)
    for group, (offset, data) in enumerate(appends, 1):
        cache.append(SID, offset, data, group)

    return cache


def window_of(group: int) -> int:
    """Two groups share a window."""
    return group - group % 2


def content(cache: TailCache, offset: int, end: int, sid: int = SID) -> bytes:
    return b"".join(cache.slices(sid, offset, end))


def blocks(cache: TailCache, sid: int = SID) -> list[int]:
    """The sizes of the blocks, with the pieces joined."""
    tail = cache._find(sid)
    return [] if tail is None else [len(block) for block in tail.blocks]


# --- blocks -------------------------------------------------------------------------------------


def test_adjacent_small_appends_share_a_block() -> None:
    """A million one-byte appends cost their bytes and a few blocks (C9)."""
    cache = cache_with(*((offset, b"x") for offset in range(100_000)))

    assert len(blocks(cache)) == 2
    assert cache.statistics().total_bytes == 100_000 + 2 * BLOCK_OVERHEAD


def test_small_appends_are_joined_when_there_are_enough_or_when_they_are_asked_for() -> None:
    """Publishing an append to one of many segments must cost little. What waits is charged too (C9)."""
    cache = cache_with(*((offset, b"x") for offset in range(40)))
    tail = cache._tails[SID]

    assert (list(map(len, tail.blocks)), len(tail.pieces)) == ([32], 8)
    assert cache.statistics().total_bytes > 40 + BLOCK_OVERHEAD
    assert content(cache, 30, 50) == b"x" * 10
    assert (list(map(len, tail.blocks)), tail.pieces) == ([40], [])
    assert cache.statistics().total_bytes == 40 + BLOCK_OVERHEAD


def test_joined_appends_keep_the_windows_of_their_groups() -> None:
    """C10: where the log has the bytes of each append."""
    cache = cache_with(*((offset, b"x") for offset in range(6)), limit=KIB * KIB, spills=True)

    assert [cache.extent_at(SID, offset) for offset in (0, 1, 4, 5)] == [
        LogExtent(0, 1, 0),
        LogExtent(1, 3, 2),
        LogExtent(3, 5, 4),
        LogExtent(5, 6, 6),
    ]
    cache.append(SID, 6, b"x", 7)
    assert cache.extent_at(SID, 6) == LogExtent(5, 7, 6)


def test_appends_that_wait_to_be_joined_are_spilled_too() -> None:
    """C10: those of very many segments may fill the cache."""
    cache = TailCache(20 * KIB, window_of)
    for sid in range(100):
        cache.open_segment(sid, 0)
        cache.append(sid, 0, bytes(KIB), sid + 1)

    statistics = cache.statistics()
    assert statistics.total_bytes <= 20 * KIB
    assert statistics.unflushed_bytes == 100 * KIB == statistics.pinned_bytes + statistics.spilled_bytes
    assert (content(cache, 0, KIB, sid=0), content(cache, 0, KIB, sid=99)) == (b"", bytes(KIB))
    assert cache.extent_at(0, 0) == LogExtent(0, KIB, 0)


def test_every_block_is_charged_an_overhead() -> None:
    cache = cache_with((0, b"a"), (10, b"b"), (20, b"c"))

    assert cache.statistics().total_bytes == 3 + 3 * BLOCK_OVERHEAD


def test_a_block_ends_before_it_would_pass_its_size() -> None:
    cache = cache_with(*((place * 20 * KIB, bytes(20 * KIB)) for place in range(4)))

    assert blocks(cache) == [60 * KIB, 20 * KIB]
    assert max(blocks(cache)) <= BLOCK_BYTES


def test_large_data_is_kept_by_reference() -> None:
    data = bytes(100 * KIB)
    cache = cache_with((0, data))

    assert cache.slices(SID, 0, len(data))[0] is data


def test_large_data_does_not_grow_later() -> None:
    data = bytes(40 * KIB)
    cache = cache_with((0, data), (40 * KIB, b"next"))

    assert blocks(cache) == [40 * KIB, 4]
    assert content(cache, 40 * KIB - 1, 50 * KIB) == b"\0next"


def test_the_callers_buffer_may_change_after_an_append() -> None:
    small, large = bytearray(b"small"), bytearray(b"L" * 40 * KIB)
    cache = cache_with((0, memoryview(small)), (5, memoryview(large)))  # type: ignore[arg-type]
    small[:] = b"xxxxx"
    large[0] = 0

    assert content(cache, 0, 6) == b"smallL"


def test_slices_stay_as_they_are_when_more_is_appended() -> None:
    cache = cache_with((0, b"abc"))
    before = cache.slices(SID, 0, 3)
    cache.append(SID, 3, b"def", 2)

    assert before == [b"abc"]


# --- what is there ------------------------------------------------------------------------------


def test_the_first_gap_and_the_next_block_are_found() -> None:
    cache = cache_with((2, b"cd"), (4, b"e" * 40 * KIB), (50_000, b"x"))
    end_of_run = 4 + 40 * KIB

    assert cache.first_missing(SID, 0, 10) == 0
    assert cache.first_missing(SID, 2, 10) == 10
    assert cache.first_missing(SID, 3, 50_001) == end_of_run
    assert cache.first_missing(SID, 5, 5) == 5
    assert cache.next_unflushed(SID, 4) == 50_000
    assert cache.next_unflushed(SID, 50_000) is None
    assert cache.next_cached(SID, 0) == 2
    assert cache.next_cached(SID, 4) == 50_000
    assert cache.next_cached(SID, 50_000) is None


def test_nothing_is_known_of_a_segment_that_was_never_opened() -> None:
    cache = TailCache(100, window_of)

    assert SID not in cache
    assert cache.slices(SID, 0, 10) == []
    assert cache.first_missing(SID, 3, 10) == 3
    assert cache.next_unflushed(SID, 3) is None
    assert cache.extent_at(SID, 3) is None
    assert cache.next_cached(SID, 0) is None
    cache.mark_flushed(SID, 10)
    cache.drop_segment(SID)
    assert cache.statistics() == attrs.evolve(cache.statistics(), segments=0, total_bytes=0, pinned_bytes=0)


# --- pinned bytes and eviction ------------------------------------------------------------------


def test_flushed_blocks_are_evicted_when_the_cache_is_too_large() -> None:
    cache = cache_with(*((place * 64 * KIB, bytes(64 * KIB)) for place in range(8)), limit=256 * KIB)
    cache.mark_flushed(SID, 8 * 64 * KIB)
    cache.append(SID, 8 * 64 * KIB, b"x", 9)

    statistics = cache.statistics()
    assert statistics.total_bytes <= 256 * KIB
    assert statistics.evicted_bytes == 5 * 64 * KIB
    assert cache.next_cached(SID, 0) == 5 * 64 * KIB, "the oldest blocks go first"


def test_a_block_that_is_partly_pinned_stays_whole() -> None:
    cache = cache_with((0, bytes(60 * KIB)), limit=0)
    cache.mark_flushed(SID, 60 * KIB - 1)
    cache.evict()

    assert content(cache, 0, 60 * KIB) == bytes(60 * KIB)


def test_unflushed_blocks_are_spilled_when_the_cache_is_too_large() -> None:
    """C10: memory is bounded, and the log's extent of every byte is known."""
    cache = cache_with(
        *((place * 64 * KIB, bytes(64 * KIB)) for place in range(40)), limit=1024 * KIB, spills=True
    )

    statistics = cache.statistics()
    assert statistics.total_bytes <= 1024 * KIB
    assert statistics.unflushed_bytes == 40 * 64 * KIB
    assert statistics.spilled_bytes == statistics.unflushed_bytes - statistics.pinned_bytes > 1500 * KIB
    assert statistics.evicted_bytes == 0
    assert content(cache, 0, 64 * KIB) == b"", "the oldest blocks go first"
    assert content(cache, 39 * 64 * KIB, 40 * 64 * KIB) == bytes(64 * KIB)
    assert cache.first_missing(SID, 0, 40 * 64 * KIB) == 40 * 64 * KIB
    assert cache.extent_at(SID, 0) == LogExtent(0, 64 * KIB, 0)
    assert cache.extent_at(SID, 3 * 64 * KIB - 1) == LogExtent(64 * KIB, 3 * 64 * KIB, 2)


def test_what_is_spilled_and_flushed_is_forgotten() -> None:
    cache = cache_with((0, bytes(100)), (100, bytes(100)), limit=0, spills=True)
    cache.mark_flushed(SID, 150)

    assert cache.statistics().unflushed_bytes == 50
    assert cache.extent_at(SID, 149) is None
    assert cache.extent_at(SID, 150) == LogExtent(150, 200, 2)
    cache.drop_segment(SID)
    assert cache.statistics().unflushed_bytes == 0


def test_flushed_blocks_are_evicted_before_unflushed_ones_are_spilled() -> None:
    cache = cache_with(*((at * 64 * KIB, bytes(64 * KIB)) for at in range(7)), limit=512 * KIB, spills=True)
    cache.mark_flushed(SID, 4 * 64 * KIB)
    cache.append(SID, 7 * 64 * KIB, bytes(64 * KIB), 8)

    statistics = cache.statistics()
    assert statistics.evicted_bytes > 0
    assert statistics.spilled_bytes == 0


def test_spilled_bytes_that_are_logged_again_move_to_their_new_group() -> None:
    cache = cache_with((0, bytes(100)), (100, bytes(100)), limit=0, spills=True)
    cache.append(SID, 50, bytes(100), 8)

    assert [cache.extent_at(SID, offset) for offset in (0, 50, 150)] == [
        LogExtent(0, 50, 0),
        LogExtent(50, 150, 8),
        LogExtent(150, 200, 2),
    ]
    assert cache.statistics().unflushed_bytes == 200
    assert cache.statistics().total_bytes == 0


# --- the model ----------------------------------------------------------------------------------

LENGTH = 60
SEGMENT = bytes(range(1, LENGTH + 1))

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(0, 12)),
        st.tuples(st.just("again"), st.integers(0, 1), st.tuples(st.integers(0, LENGTH), st.integers(1, 20))),
        st.tuples(st.just("flushed"), st.integers(0, 1), st.integers(0, LENGTH)),
        st.tuples(st.just("drop"), st.integers(0, 1), st.integers(0, LENGTH)),
        st.tuples(st.just("evict"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@attrs.define
class Model:
    """One segment as single bytes. ``end``: where the next append goes; ``evictable``: bytes that may be
    missing."""

    flushed: int = 0
    end: int = 0
    known: dict[int, int] = attrs.field(factory=dict)
    groups: dict[int, int] = attrs.field(factory=dict)
    """The newest group of each unflushed byte."""

    def put(self, offset: int, data: bytes, group: int) -> None:
        self.known.update(enumerate(data, offset))
        self.groups.update(
            dict.fromkeys(range(max(offset, self.flushed), offset + len(data)), window_of(group))
        )
        self.end = max(self.end, offset + len(data))

    def flush(self, flushed: int) -> None:
        self.flushed = max(self.flushed, flushed)
        self.groups = {offset: group for offset, group in self.groups.items() if offset >= self.flushed}

    @property
    def pinned(self) -> int:
        return sum(offset >= self.flushed for offset in self.known)


def cached_bytes(cache: TailCache, sid: int) -> dict[int, int]:
    return {
        offset: piece[0] for offset in range(LENGTH) if (piece := content(cache, offset, offset + 1, sid))
    }


@given(steps, st.sampled_from([0, 400, 1 << 20]), st.booleans(), st.sampled_from([1, 5]))
def test_the_cache_agrees_with_its_model(
    script: list[tuple[str, int, object]], limit: int, spills: bool, stride: int
) -> None:
    """Compared after every ``stride`` steps: what is asked of the cache completes its newest extent."""
    cache = TailCache(limit, window_of if spills else None)
    models = {sid: Model() for sid in (0, 1)}
    for sid in models:
        cache.open_segment(sid, 0)

    for number, (verb, sid, argument) in enumerate(script, 1):
        # Groups of two steps, so that four share a window.
        run_step(cache, models, number // 2, verb, sid, argument)
        if number % stride == 0 or number == len(script):
            check(cache, models, spills=spills, limit=limit)


def run_step(
    cache: TailCache, models: dict[int, Model], group: int, verb: str, sid: int, argument: object
) -> None:
    model = models[sid]
    if verb == "append" and isinstance(argument, int):
        data = SEGMENT[model.end : model.end + argument]
        if data:
            cache.append(sid, model.end, data, group)
            model.put(model.end, data, group)
    elif verb == "again" and isinstance(argument, tuple):
        offset, size = argument
        data = SEGMENT[offset : offset + size]
        if data:
            cache.append(sid, offset, data, group)
            model.put(offset, data, group)
    elif verb == "flushed" and isinstance(argument, int):
        cache.mark_flushed(sid, argument)
        model.flush(argument)
    elif verb == "drop" and isinstance(argument, int):
        cache.drop_segment(sid)
        cache.open_segment(sid, argument)
        models[sid] = Model(flushed=argument, end=argument)
    else:
        cache.evict()


def check(cache: TailCache, models: dict[int, Model], *, spills: bool, limit: int) -> None:
    data = 0
    count = 0
    for sid, model in models.items():
        cached = cached_bytes(cache, sid)
        data += len(cached)
        count += len(blocks(cache, sid))
        missing = {offset for offset in model.known if offset not in cached}

        assert cached.items() <= model.known.items()
        assert spills or all(offset < model.flushed for offset in missing), "only flushed bytes are evicted"
        model.known = cached
        for offset in range(LENGTH + 1):
            gap = next((o for o in range(offset, LENGTH) if o not in cached), LENGTH)
            assert content(cache, offset, LENGTH, sid) == SEGMENT[offset:gap]
            missing_at = next((o for o in range(offset, LENGTH) if o not in model.groups), LENGTH)
            assert cache.first_missing(sid, offset, LENGTH) == missing_at
            extent = cache.extent_at(sid, offset)
            assert (None if extent is None else window_of(extent.window)) == model.groups.get(offset)

    assert not spills or cache.statistics().total_bytes <= limit
    assert cache.unflushed_bytes == sum(len(model.groups) for model in models.values())
    assert cache.pinned_bytes == sum(model.pinned for model in models.values())
    assert cache._data == data
    assert cache.statistics().total_bytes == data + count * BLOCK_OVERHEAD
