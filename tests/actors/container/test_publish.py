"""Publishing: durable lengths, cached bytes, log references and append boundaries; live and in replay."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.container_parts import NAME, ROLLING, Parts, append
from tierlog.actors.container.operations.cold import UnloadRequest
from tierlog.actors.container.operations.create import CreateRequest
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.truncate import TruncateRequest
from tierlog.actors.container.requests import Request
from tierlog.actors.container.segments import APPEND_BOUNDARY_BYTES, SegmentWaiter
from tierlog.journal.manifest.element import SEGMENTS
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.forget_segment import ForgetSegment
from tierlog.journal.operations.load_segment import LoadSegment
from tierlog.journal.operations.relog_data import RelogData
from tierlog.journal.operations.seal_segment import SealSegment
from tierlog.storage_backends.segments.records.segment import segment_key
from tierlog.storage_backends.sorted_runs.run_list import RunList


def test_nothing_is_readable_before_it_is_published() -> None:
    """C1: an applied operation changes no durable length and puts nothing into the cache."""
    parts = Parts()
    parts.decide(CreateRequest(NAME, ROLLING))
    segment = parts.segment()
    assert segment.durable_length == -1

    parts.publish()
    parts.decide(append(NAME, b"abc"))
    assert (segment.length, segment.durable_length) == (3, -1)
    assert segment.sid not in parts.cache


def test_an_append_without_bytes_leaves_no_log_reference() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b""))

    assert segment.durable_length == 0
    assert not segment.log_references
    assert not segment.append_boundaries


def test_neighbouring_groups_share_a_reference_to_the_first_one() -> None:
    """C9: a segment that is appended to in every group does not have a reference to each."""
    parts = Parts()
    segment = parts.create()
    first = parts.group + 1
    for _ in range(100):
        parts.do(append(NAME, b"x"))

    assert len(segment.log_references) < 10
    assert segment.log_references[0][1] == first
    assert segment.log_references[-1][0] == 100


def test_an_append_is_published_once() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abc"))
    with pytest.raises(ValueError, match="was published before"):
        parts.publish(Append(segment.sid, 0, b"abc", b"", 0, 0))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40_000)), max_size=12), st.integers(0, 11))
def test_a_run_of_appends_is_published_like_single_appends(
    script: list[tuple[str, int]], sealed_at: int
) -> None:
    """Appends of a group become visible in runs, one for each segment, with the same result as one by one."""
    together, alone = Parts(), Parts()
    requests: list[Request] = [
        append(name, bytes([number]) * size) for number, (name, size) in enumerate(script)
    ]
    requests.insert(sealed_at, SealRequest("other"))
    for parts in (together, alone):
        parts.create("other", "a", "b", "c")
    together.do(*requests)
    alone.do(*requests[:1])
    for request in requests[1:]:
        alone.group -= 1
        alone.do(request)

    for name in "abc":
        left, right = together.segment(name), alone.segment(name)
        assert left.durable_length == right.durable_length == left.length
        assert together.content(left.sid) == alone.content(right.sid)
        assert (left.log_references, left.append_boundaries) == (
            right.log_references,
            right.append_boundaries,
        )
    assert together.cache.pinned_bytes == alone.cache.pinned_bytes == sum(size for _, size in script)


def test_unflushed_bytes_have_log_references() -> None:
    parts = Parts()
    segment = parts.create()
    groups = []
    for data in (b"ab", b"cd", b"ef"):
        parts.group += 100
        parts.do(append(NAME, data))
        groups.append(parts.group)
    assert list(segment.log_references) == [(2, groups[0]), (4, groups[1]), (6, groups[2])]

    parts.flush(length=3)
    assert list(segment.log_references) == [(4, groups[1]), (6, groups[2])]
    assert parts.cache.pinned_bytes == 3
    parts.flush()
    assert not segment.log_references
    assert parts.cache.pinned_bytes == 0


@pytest.mark.parametrize("verb", ["append", "seal", "truncate", "delete", "merge", "be merged"])
def test_waiters_are_woken_by_durable_changes(verb: str) -> None:
    parts = Parts()
    parts.create("other")
    segment = parts.create()
    parts.do(append(NAME, b"abc"))
    woken: list[str] = []
    waiter = segment.waiter = SegmentWaiter()
    waiter.add(partial(woken.append, verb))
    if verb == "append":
        parts.do(append(NAME, b"d"))
    elif verb == "seal":
        parts.do(SealRequest(NAME))
    elif verb == "truncate":
        parts.do(TruncateRequest(NAME, 1))
    elif verb == "delete":
        parts.do(DeleteRequest(NAME))
    elif verb == "merge":
        parts.do(SealRequest("other"), MergeRequest(NAME, ["other"], []))
    else:
        parts.do(SealRequest(NAME), MergeRequest("other", [NAME], []))

    assert woken == [verb]
    assert segment.waiter is None


def test_a_deleted_segment_frees_its_memory() -> None:
    parts = Parts()
    target, source = parts.create("t"), parts.create("s")
    parts.do(append("t", b"tt"), append("s", b"ss"), SealRequest("s"), MergeRequest("t", ["s"], []))
    assert parts.cache.pinned_bytes == 4
    parts.do(DeleteRequest("t"))

    assert parts.cache.pinned_bytes == 0
    assert not target.log_references
    assert not source.log_references
    parts.log(ForgetSegment(target.sid))
    assert target.sid not in parts.cache


def test_a_merged_source_leaves_the_cache_once_the_merge_is_flushed() -> None:
    parts = Parts()
    parts.create("t")
    source = parts.create("s")
    parts.do(append("s", b"sss"), SealRequest("s"))
    parts.flush("s")
    parts.do(MergeRequest("t", ["s"], []))
    parts.commit({segment_key(source.sid): None})

    assert source.sid not in parts.cache


# --- append boundaries (S5) ------------------------------------------------------------------------


def test_boundaries_of_flushed_bytes_are_dropped_but_the_last() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(*(append(NAME, bytes(APPEND_BOUNDARY_BYTES)) for _ in range(4)))
    parts.flush(length=2 * APPEND_BOUNDARY_BYTES + 5)

    assert list(segment.append_boundaries) == [2 * APPEND_BOUNDARY_BYTES, 3 * APPEND_BOUNDARY_BYTES]


# --- re-logged bytes (F4) -----------------------------------------------------------------------


def relogged(parts: Parts, start: int, data: bytes) -> int:
    parts.log(RelogData(parts.segment().sid, start, data))
    return parts.group


def test_re_logged_bytes_need_their_new_group_only() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abc"))
    parts.do(append(NAME, b"def"))
    group = relogged(parts, 0, b"abcdef")
    parts.do(append(NAME, b"g"))

    assert list(segment.log_references) == [(7, group)], "a following group shares its reference"
    assert parts.content(segment.sid) == b"abcdefg"


def test_bytes_re_logged_in_pieces_need_the_group_of_every_piece() -> None:
    """F4: a log cut at the lowest reference must still hold the first piece."""
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abcdef"))
    groups = [relogged(parts, 0, b"ab"), relogged(parts, 2, b"cd"), relogged(parts, 4, b"ef")]

    assert list(segment.log_references) == [(2, groups[0]), (4, groups[1]), (6, groups[2])]


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=8),
    st.lists(st.integers(1, 5), max_size=6),
    st.integers(0, 20),
)
def test_log_references_cover_every_unflushed_byte(
    appends: list[int], pieces: list[int], flushed: int
) -> None:
    """C7: whatever was appended, re-logged and flushed, cutting the log at the lowest reference loses no byte
    that only the log has."""
    parts = Parts()
    segment = parts.create()
    holders: dict[int, set[int]] = {}
    for size in appends:
        start = segment.length
        parts.do(append(NAME, bytes(size)))
        for offset in range(start, start + size):
            holders.setdefault(offset, set()).add(parts.group)
    position = 0
    for size in pieces:
        end = min(segment.length, position + size)
        if position < end:
            group = relogged(parts, position, bytes(end - position))
            for offset in range(position, end):
                holders[offset].add(group)
        position = end
    parts.flush(length=min(flushed, segment.length))

    lowest = min((group for _, group in segment.log_references), default=parts.group)
    assert all(max(holders[offset]) >= lowest for offset in range(segment.flushed, segment.length))
    assert all(before[0] < after[0] for before, after in pairwise(segment.log_references))


def test_re_logging_deleted_or_flushed_bytes_does_nothing() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abc"))
    parts.flush()
    relogged(parts, 0, b"abc")
    assert not segment.log_references

    parts.do(append(NAME, b"d"), DeleteRequest(NAME))
    parts.log(RelogData(segment.sid, 3, b"d"))
    assert not segment.log_references
    assert segment.sid not in parts.cache
    parts.log(ForgetSegment(segment.sid))
    parts.publish(RelogData(segment.sid, 3, b"d"))


# --- recovery -----------------------------------------------------------------------------------


def test_bytes_from_before_a_checkpoint_are_restored_with_their_references() -> None:
    parts = Parts()
    segment = parts.create()
    segment.length = segment.durable_length = 6
    parts.publisher.restore_data(Append(segment.sid, 0, b"abc", b"", 0, 0), 3)
    parts.publisher.restore_data(Append(segment.sid, 3, b"def", b"", 0, 0), 40)

    assert parts.content(segment.sid) == b"abcdef"
    assert list(segment.log_references) == [(3, 3), (6, 40)]
    assert list(segment.append_boundaries) == [0]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 19), st.integers(1, 8), st.integers(1, 20)), max_size=8),
    st.integers(0, 20),
)
def test_restored_references_cover_every_unflushed_byte(
    script: list[tuple[bool, int, int, int]], flushed: int
) -> None:
    """W5, C7: whatever was re-logged before the checkpoint, and wherever a crash cut that short."""
    parts = Parts()
    segment = parts.create()
    data = bytes(range(20))
    segment.length = segment.durable_length = 20
    parts.publisher.restore_data(Append(segment.sid, 0, data, b"", 0, 0), 1)
    group, holders = 1, dict.fromkeys(range(20), 1)
    for is_relog, start, size, step in script:
        group += step
        if is_relog:
            parts.publisher.restore_data(RelogData(segment.sid, start, data[start : start + size]), group)
            holders.update(dict.fromkeys(range(start, min(20, start + size)), group))
    parts.group = group
    parts.flush(length=flushed)

    lowest = min((number for _, number in segment.log_references), default=group + 1)
    assert all(holders[offset] >= lowest for offset in range(flushed, 20))


def test_only_appends_are_boundaries_in_recovery_too() -> None:
    """Append starts must ascend in a write to a chunk: re-logged bytes may begin anywhere (S5)."""
    parts = Parts()
    segment = parts.create()
    segment.length = segment.durable_length = 6
    parts.publisher.restore_data(Append(segment.sid, 3, b"def", b"", 0, 0), 4)
    parts.publisher.restore_data(RelogData(segment.sid, 0, b"abcdef"), 5)

    assert parts.content(segment.sid) == b"abcdef"
    assert list(segment.append_boundaries) == [3]


def test_flushed_and_unknown_bytes_are_not_restored() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abc"))
    parts.flush()
    parts.cache.drop_segment(segment.sid)
    parts.publisher.restore(segment)
    parts.publisher.restore_data(Append(segment.sid, 0, b"abc", b"", 0, 0), 3)
    parts.publisher.restore_data(Append(99, 0, b"abc", b"", 0, 0), 3)

    assert parts.content(segment.sid) == b""
    assert not segment.log_references


def test_a_deleted_segment_is_restored_without_a_cache() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(DeleteRequest(NAME))
    parts.publisher.restore(segment)

    assert segment.sid not in parts.cache


# --- unloading ----------------------------------------------------------------------------------


def unload_idle(parts: Parts, limit: int) -> None:
    parts.state.table.use(RunList((), parts.state.sequence, SEGMENTS))
    while (idle := parts.publisher.find_idle(limit)) is not None:
        parts.do(UnloadRequest(idle))


def test_m5_idle_segments_above_the_limit_are_unloaded_with_a_margin() -> None:
    parts = Parts()
    for number in range(25):
        parts.create(f"s{number}")
        parts.flush(f"s{number}")
    sids = list(parts.state.segments.by_id)
    unload_idle(parts, 20)

    assert len(parts.state.segments.by_id) == 18
    assert [sid in parts.cache for sid in sids] == [sid in parts.state.segments for sid in sids]


def test_m4_a_loaded_segment_is_cached_from_its_flushed_offset_on() -> None:
    parts = Parts()
    parts.create()
    parts.do(append(NAME, b"abc"))
    segment = parts.flush()
    load = LoadSegment(segment.touched, segment.image(), *parts.state.resident[segment_key(segment.sid)])
    unload_idle(parts, 0)
    assert not parts.state.segments.by_id

    parts.log(load)
    parts.do(append(NAME, b"def"))
    assert parts.cache.slices(segment.sid, 3, 6) == [b"def"]
    assert parts.cache.pinned_bytes == 3
    parts.log(SealSegment(segment.sid))
    assert parts.segment().sealed


def test_busy_segments_are_not_searched_again_after_every_group() -> None:
    parts = Parts()
    for number in range(12):
        parts.create(f"s{number}")
        parts.do(append(f"s{number}", b"x"))
    unload_idle(parts, 10)
    parts.state.find_cached = lambda runs, key: (True, None)
    parts.flush("s0")
    assert not parts.publisher.has_too_many(10)
    assert len(parts.state.segments.by_id) == 12

    parts.create("s12", "s13")
    parts.do(append("s12", b"x"), append("s13", b"x"))
    unload_idle(parts, 10)
    assert len(parts.state.segments.by_id) == 13
