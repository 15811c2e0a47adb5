"""Merges: all or nothing, in order, readable at once, and spliced into long-term storage whatever was flushed
before."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

import tierlog
from support.container_world import ContainerWorld, Owner, read_all, recorded_segments, referenced_chunks
from support.stores import follow, make
from tierlog import AttributeConflict, AttributeUpdate, AttributeUpdateKind, InvalidArgument, SegmentStore
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = pytest.mark.anyio

BIG = (bytes(range(253)) * 600)[:150_000]
"""More than two chunks, which roll at 64 KiB."""


@pytest.fixture
async def owner(anyio_backend: str) -> AsyncIterator[Owner]:
    async with ContainerWorld().owner() as owner:
        yield owner


@pytest.fixture
def store(owner: Owner) -> SegmentStore:
    return owner.store


async def test_a_merge_moves_the_sources_to_the_tail_in_order(store: SegmentStore) -> None:
    await make(store, "t", b"base")
    for number, data in enumerate((b"one", b"", b"three")):
        await make(store, f"t#{number}", data, sealed=True)

    assert await store.merge_segments("t", ["t#2", "t#1", "t#0"]) == 4
    assert await read_all(store, "t") == b"basethreeone"
    assert await store.list_segments() == ["t"]
    assert await store.append("t", b"more") == 12


async def test_a_merge_of_only_empty_sources_changes_no_byte(store: SegmentStore) -> None:
    await make(store, "t", b"base")
    await make(store, "t#1", sealed=True)

    assert await store.merge_segments("t", ["t#1"]) == 4
    assert await store.read("t", 0, 10) == b"base"
    await store.flush()
    assert (await store.segment_info("t")).flushed_length == 4


@pytest.mark.parametrize("target_flushed", [False, True])
@pytest.mark.parametrize("source_flushed", [False, True])
async def test_merged_bytes_are_readable_before_during_and_after_the_splice(
    owner: Owner, target_flushed: bool, source_flushed: bool
) -> None:
    """F3: merged, unflushed sources; flushed ones; one of each; the flush writes what is missing and links
    the rest."""
    store = owner.store
    await make(store, "t", BIG)
    if target_flushed:
        await store.flush()
    await make(store, "t#1", BIG[::-1], sealed=True)
    if source_flushed:
        await store.flush()
    await make(store, "t#2", b"small", sealed=True)
    await store.merge_segments("t", ["t#1", "t#2"])
    await store.append("t", b"later")
    expected = BIG + BIG[::-1] + b"small" + b"later"

    assert await read_all(store, "t") == expected
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.flush)
        while (await store.segment_info("t")).flushed_length < len(expected):
            assert await read_all(store, "t") == expected

    assert await read_all(store, "t") == expected
    assert recorded_segments(owner.container) == {(await store.segment_info("t")).segment_id}


async def test_a_source_that_is_itself_a_target_brings_everything_along(store: SegmentStore) -> None:
    for name, data in (("t", b"t"), ("t#a", b"a"), ("t#a1", b"a1"), ("t#a2", b"a2")):
        await make(store, name, data)
    for source, target in (("t#a2", "t#a1"), ("t#a1", "t#a"), ("t#a", "t")):
        await store.seal_segment(source)
        await store.merge_segments(target, [source])

    assert await read_all(store, "t") == b"taa1a2"
    await store.flush()
    assert await read_all(store, "t") == b"taa1a2"
    await store.append("t", b"!")
    assert await read_all(store, "t", 1) == b"aa1a2!"


async def test_a_target_is_truncated_inside_and_behind_merged_bytes(store: SegmentStore) -> None:
    await make(store, "t", b"0123456789")
    await make(store, "t#1", BIG, sealed=True)
    await store.merge_segments("t", ["t#1"])
    await store.truncate_segment("t", 70_000)
    assert await read_all(store, "t", 70_000) == BIG[70_000 - 10 :]

    await store.flush()
    assert await read_all(store, "t", 70_000) == BIG[70_000 - 10 :]
    await store.truncate_segment("t", len(BIG) + 10)
    await store.flush()
    assert await store.append("t", b"x") == len(BIG) + 10
    assert await read_all(store, "t", len(BIG) + 10) == b"x"


@pytest.mark.parametrize(
    "prepare, error",
    [
        (lambda s: make(s, "t#9", b"x"), tierlog.SegmentNotSealed),
        (lambda s: make(s, "t#8", b"x", sealed=True), tierlog.SegmentNotFound),
    ],
)
async def test_one_bad_source_merges_none(
    store: SegmentStore, prepare: object, error: type[BaseException]
) -> None:
    await make(store, "t", b"base")
    await make(store, "t#1", b"one", sealed=True)
    await prepare(store)  # type: ignore[operator]

    with pytest.raises(error):
        await store.merge_segments("t", ["t#1", "t#9"], attribute_updates=[AttributeUpdate("a", 1)])
    info = await store.segment_info("t")
    assert (info.length, info.attributes) == (4, {})
    assert await store.read("t#1", 0, 10) == b"one"


async def test_a_sealed_target_a_truncated_source_and_the_target_itself_are_refused(
    store: SegmentStore,
) -> None:
    await make(store, "t", b"base", sealed=True)
    await make(store, "t#1", b"one", sealed=True)
    with pytest.raises(tierlog.SegmentSealed) as caught:
        await store.merge_segments("t", ["t#1"])
    assert caught.value.segment == "t"

    await make(store, "u", b"base")
    with pytest.raises(InvalidArgument, match="into itself"):
        await store.merge_segments("u", ["u"])
    await store.truncate_segment("t#1", 1)
    with pytest.raises(InvalidArgument, match="truncated"):
        await store.merge_segments("u", ["t#1"])


async def test_attribute_conditions_guard_the_whole_merge(store: SegmentStore) -> None:
    """How a commit is made exactly once: the second try finds the condition broken and the sources where they
    were."""
    await make(store, "t", b"base")
    await make(store, "t#1", b"one", sealed=True)
    await make(store, "t#2", b"two", sealed=True)
    commit = AttributeUpdate("epoch", 1, AttributeUpdateKind.REPLACE_IF_EQUALS)

    await store.merge_segments("t", ["t#1"], attribute_updates=[commit])
    with pytest.raises(AttributeConflict):
        await store.merge_segments("t", ["t#2"], attribute_updates=[AttributeUpdate("other", 1), commit])
    info = await store.segment_info("t")
    assert (info.length, info.attributes) == (7, {"epoch": 1})
    assert await store.list_segments() == ["t", "t#2"]


async def test_merged_names_can_be_used_again_at_once(store: SegmentStore) -> None:
    await make(store, "t")
    for round_ in range(3):
        await make(store, "t#1", b"%d" % round_, sealed=True)
        await store.merge_segments("t", ["t#1"])
        await make(store, "t#1", b"next life")
        await store.delete_segment("t#1")

    assert await read_all(store, "t") == b"012"
    await store.flush()
    assert await read_all(store, "t") == b"012"


async def test_a_tail_of_the_target_continues_into_merged_bytes(store: SegmentStore) -> None:
    await make(store, "t", b"base")
    await make(store, "t#1", b"one", sealed=True)
    seen: list[bytes] = []

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, store, "t", seen)
        await anyio.wait_all_tasks_blocked()
        await store.merge_segments("t", ["t#1"])
        await store.append("t", b"two")
        await store.seal_segment("t")

    assert b"".join(seen) == b"baseonetwo"


async def test_deleting_a_target_deletes_its_merged_bytes(owner: Owner) -> None:
    store = owner.store
    await make(store, "t", b"base")
    await make(store, "t#1", BIG, sealed=True, flushed=True)
    await store.merge_segments("t", ["t#1"])
    await store.delete_segment("t")
    await store.flush()

    assert not recorded_segments(owner.container)
    assert not referenced_chunks(owner.container)
    assert not owner.container.state.segments.by_id
    assert owner.container.cache.pinned_bytes == 0


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("fail_at", range(1, 8))
async def test_a_crash_anywhere_in_the_splice_loses_and_doubles_nothing(
    anyio_backend: str, fail_at: int, checkpoint: bool
) -> None:
    """Target, source and what came later, with long-term storage failing at its n-th change, then a crash."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await make(owner.store, "t", BIG[:100])
        await make(owner.store, "t#1", BIG, sealed=True)
        await owner.store.merge_segments("t", ["t#1"])
        await owner.store.append("t", b"later")
        changes = 0

        def script(call: Call) -> Fault | None:
            nonlocal changes
            changes += call.verb in ("write", "create_with_content")
            return Fault(FaultKind.PARTIAL, keep=7) if changes >= fail_at else None

        world.chunks.script = script
        try:
            await owner.store.flush()
        except tierlog.OutcomeUnknown:
            assert changes >= fail_at
        if checkpoint:
            await owner.checkpoint()
        await owner.crash()

        world.chunks.script = None
        owner = await world.start(tasks)
        assert await read_all(owner.store, "t") == BIG[:100] + BIG + b"later"
        await owner.store.flush()
        assert await read_all(owner.store, "t") == BIG[:100] + BIG + b"later"
        assert recorded_segments(owner.container) == {(await owner.store.segment_info("t")).segment_id}
        await owner.stop()


async def test_the_merge_locks_its_sources_in_the_same_step(store: SegmentStore) -> None:
    """A delete of a source that arrives with the merge comes before it or finds nothing."""
    await make(store, "t", b"base")
    await make(store, "t#1", b"one", sealed=True)
    results: list[object] = []

    async def note(verb: object) -> None:
        try:
            results.append(await verb)  # type: ignore[misc]
        except tierlog.SegmentNotFound as error:
            results.append(error.segment)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(note, store.merge_segments("t", ["t#1"]))
        tasks.start_soon(note, store.delete_segment("t#1"))

    assert len(results) == 2
    whole = await read_all(store, "t")
    assert (whole, sorted(map(str, results))) in [(b"baseone", ["4", "t#1"]), (b"base", ["None", "t#1"])]
