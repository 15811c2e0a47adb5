"""The tail cache: coalescing, pinned bytes, eviction, re-logged data; checked against a model of single
bytes."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.read.tail_cache import BLOCK_BYTES, BLOCK_OVERHEAD, TailCache

SID = 7
KIB = 1 << 10


def cache_with(*appends: tuple[int, bytes], flushed: int = 0, limit: int = 1 << 30) -> TailCache:
    cache = TailCache(limit)
    cache.open_segment(SID, flushed)
    for offset, data in appends:
        cache.append(SID, offset, data)

    return cache


def content(cache: TailCache, offset: int, end: int, sid: int = SID) -> bytes:
    return b"".join(cache.slices(sid, offset, end))


def blocks(cache: TailCache, sid: int = SID) -> list[int]:
    return [len(block) for block in cache._tails[sid].blocks]


# --- blocks -------------------------------------------------------------------------------------


def test_adjacent_small_appends_share_a_block() -> None:
    """A million one-byte appends cost their bytes and a few blocks (C9)."""
    cache = cache_with(*((offset, b"x") for offset in range(100_000)))

    assert len(blocks(cache)) == 2
    assert cache.statistics().total_bytes == 100_000 + 2 * BLOCK_OVERHEAD


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
    cache.append(SID, 3, b"def")

    assert before == [b"abc"]


# --- what is there ------------------------------------------------------------------------------


def test_the_first_gap_and_the_next_block_are_found() -> None:
    cache = cache_with((2, b"cd"), (4, b"e" * 40 * KIB), (50_000, b"x"))
    end_of_run = 4 + 40 * KIB

    assert cache.first_gap(SID, 0, 10) == 0
    assert cache.first_gap(SID, 2, 10) == 10
    assert cache.first_gap(SID, 3, 50_001) == end_of_run
    assert cache.first_gap(SID, 5, 5) == 5
    assert cache.next_cached(SID, 0) == 2
    assert cache.next_cached(SID, 4) == 50_000
    assert cache.next_cached(SID, 50_000) is None


def test_nothing_is_known_of_a_segment_that_was_never_opened() -> None:
    cache = TailCache(100)

    assert SID not in cache
    assert cache.slices(SID, 0, 10) == []
    assert cache.first_gap(SID, 3, 10) == 3
    assert cache.next_cached(SID, 0) is None
    cache.mark_flushed(SID, 10)
    cache.drop_segment(SID)
    assert cache.statistics() == attrs.evolve(cache.statistics(), segments=0, total_bytes=0, pinned_bytes=0)


# --- pinned bytes and eviction ------------------------------------------------------------------


def test_flushed_blocks_are_evicted_when_the_cache_is_too_large() -> None:
    cache = cache_with(*((place * 64 * KIB, bytes(64 * KIB)) for place in range(8)), limit=256 * KIB)
    cache.mark_flushed(SID, 8 * 64 * KIB)
    cache.append(SID, 8 * 64 * KIB, b"x")

    statistics = cache.statistics()
    assert statistics.total_bytes <= 256 * KIB
    assert statistics.evicted_bytes == 5 * 64 * KIB
    assert cache.next_cached(SID, 0) == 5 * 64 * KIB, "the oldest blocks go first"


def test_a_block_that_is_partly_pinned_stays_whole() -> None:
    cache = cache_with((0, bytes(60 * KIB)), limit=0)
    cache.mark_flushed(SID, 60 * KIB - 1)
    cache.evict()

    assert content(cache, 0, 60 * KIB) == bytes(60 * KIB)


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

    def put(self, offset: int, data: bytes) -> None:
        self.known.update(enumerate(data, offset))
        self.end = max(self.end, offset + len(data))

    @property
    def pinned(self) -> int:
        return sum(offset >= self.flushed for offset in self.known)


def cached_bytes(cache: TailCache, sid: int) -> dict[int, int]:
    return {
        offset: piece[0] for offset in range(LENGTH) if (piece := content(cache, offset, offset + 1, sid))
    }


@given(steps, st.sampled_from([0, 400, 1 << 20]))
def test_the_cache_agrees_with_its_model(script: list[tuple[str, int, object]], limit: int) -> None:
    cache = TailCache(limit)
    models = {sid: Model() for sid in (0, 1)}
    for sid in models:
        cache.open_segment(sid, 0)

    for verb, sid, argument in script:
        run_step(cache, models, verb, sid, argument)
        check(cache, models)


def run_step(cache: TailCache, models: dict[int, Model], verb: str, sid: int, argument: object) -> None:
    model = models[sid]
    if verb == "append" and isinstance(argument, int):
        data = SEGMENT[model.end : model.end + argument]
        if data:
            cache.append(sid, model.end, data)
            model.put(model.end, data)
    elif verb == "again" and isinstance(argument, tuple):
        offset, size = argument
        data = SEGMENT[offset : offset + size]
        if data:
            cache.append(sid, offset, data)
            model.put(offset, data)
    elif verb == "flushed" and isinstance(argument, int):
        cache.mark_flushed(sid, argument)
        model.flushed = max(model.flushed, argument)
    elif verb == "drop" and isinstance(argument, int):
        cache.drop_segment(sid)
        cache.open_segment(sid, argument)
        models[sid] = Model(flushed=argument, end=argument)
    else:
        cache.evict()


def check(cache: TailCache, models: dict[int, Model]) -> None:
    data = 0
    count = 0
    for sid, model in models.items():
        cached = cached_bytes(cache, sid)
        data += len(cached)
        count += len(blocks(cache, sid))
        missing = {offset for offset in model.known if offset not in cached}

        assert cached.items() <= model.known.items()
        assert all(offset < model.flushed for offset in missing), "only flushed bytes may be evicted"
        model.known = cached
        for offset in range(LENGTH + 1):
            gap = next((o for o in range(offset, LENGTH) if o not in cached), LENGTH)
            assert cache.first_gap(sid, offset, LENGTH) == gap
            assert content(cache, offset, LENGTH, sid) == SEGMENT[offset:gap]

    assert cache.pinned_bytes == sum(model.pinned for model in models.values())
    assert cache._data == data
    assert cache.statistics().total_bytes == data + count * BLOCK_OVERHEAD
