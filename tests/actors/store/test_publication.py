"""What full flush cycles publish: one state of each segment, without those that could not be flushed (rules
F1 and F10)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import anyio
import pytest
from msgspec.structs import replace
from simulation.records import broken_publication

from support.container_world import OPTIONS, ContainerWorld, Owner, virtual_time
from support.stores import make
from support.table_rows import published_rows
from tierlog import AttributeUpdate, AttributeUpdateKind, Unavailable
from tierlog.actors.container.segment_rows import IMAGE_PREFIX, load_of_row
from tierlog.actors.flush import writer
from tierlog.journal.operations.segment_image import decode_image
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]


def published(owner: Owner) -> dict[str, int]:
    """The lengths of the segments that the runs have."""
    rows = published_rows(owner.container)
    loads = (load_of_row(row) for key, row in rows.items() if key.startswith(IMAGE_PREFIX))
    images = (decode_image(load.image) for load in loads if load is not None)
    return {image.name: image.length for image in images}


def fails(owner: Owner, *names: str) -> Callable[[Call], Fault | None]:
    """Writes to chunks of these segments fail."""
    folders = [f"/{owner.container.segments.require(name).sid:016x}/" for name in names]

    def script(call: Call) -> Fault | None:
        is_write = call.verb in ("create", "write", "create_with_content")
        is_theirs = any(folder in call.name for folder in folders)
        return Fault(FaultKind.BEFORE) if is_write and is_theirs else None

    return script


def takes(owner: Owner, seconds: dict[str, float]) -> Callable[[Call], Fault | None]:
    """Writes to chunks of these segments take so long; of infinitely many seconds: they fail."""
    folders = {f"/{owner.container.segments.require(name).sid:016x}/": name for name in seconds}

    def script(call: Call) -> Fault | None:
        name = next((name for folder, name in folders.items() if folder in call.name), None)
        if name is None or call.verb not in ("create", "write", "create_with_content"):
            return None
        if seconds[name] == inf:
            return Fault(FaultKind.BEFORE)
        return Fault(FaultKind.DELAY, seconds=seconds[name])

    return script


def held(owner: Owner) -> set[str]:
    """The names of the segments that are held back."""
    segments = [owner.container.segments.by_id[sid] for sid in owner.container.state.table.runs.held]
    return {segment.name for segment in segments}


async def test_f10_a_segment_that_fails_holds_back_nobody_else() -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in ("bad", "good"):
            await make(owner.store, name, b"first")
        await owner.store.flush()
        world.chunks.script = fails(owner, "bad")
        for name in ("bad", "good"):
            await owner.store.append(name, b" second")
        await owner.store.update_attributes("bad", [AttributeUpdate("a", 1, AttributeUpdateKind.REPLACE)])
        await anyio.sleep(40)
        with pytest.raises(Unavailable):
            await owner.store.flush()
        await anyio.sleep(40)
        sid = owner.container.segments.require("bad").sid
        assert published(owner) == {"bad": 5, "good": 12}
        assert owner.container.state.table.runs.held == (sid,)
        assert owner.container.statistics().table.held_segments == 1
        assert not list(broken_publication(owner.container))
        await owner.checkpoint()
        await owner.store.append("good", b" third")
        await owner.crash()
        # The next owner holds it back as well, and publishes it once it can be flushed.
        owner = await world.start(tasks)
        await anyio.sleep(80)
        assert published(owner) == {"bad": 5, "good": 18}
        world.chunks.script = None
        await owner.store.flush()
        assert published(owner) == {"bad": 12, "good": 18}
        assert owner.container.state.table.runs.held == ()
        assert owner.container.state.table.rows == 0
        assert not list(broken_publication(owner.container))
        await owner.stop()


async def test_f10_more_segments_are_held_back_than_an_element_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is published of others either, until fewer are held back."""
    monkeypatch.setattr(writer, "HELD_MAX", 2)
    world = ContainerWorld()
    async with world.owner() as owner:
        for name in ("a", "b", "c", "good"):
            await make(owner.store, name, b"first")
        await owner.store.flush()
        world.chunks.script = fails(owner, "a", "b", "c")
        for name in ("a", "b", "c", "good"):
            await owner.store.append(name, b" second")
        await anyio.sleep(40)
        assert published(owner) == {"a": 5, "b": 5, "c": 5, "good": 5}
        world.chunks.script = fails(owner, "a", "c")
        await anyio.sleep(120)
        assert published(owner) == {"a": 5, "b": 12, "c": 5, "good": 12}
        world.chunks.script = None
        await owner.store.flush()
        assert published(owner) == {"a": 12, "b": 12, "c": 12, "good": 12}
        assert not list(broken_publication(owner.container))


async def test_f10_a_merge_whose_target_fails_is_held_back_with_its_sources() -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in ("target", "a", "b"):
            await make(owner.store, name, name.encode())
        for name in ("a", "b"):
            await owner.store.seal_segment(name)
        await owner.store.flush()
        before = published(owner)
        world.chunks.script = fails(owner, "target", "a", "b")
        await owner.store.merge_segments("target", ["a"])
        await owner.store.append("target", b"between")
        await owner.store.merge_segments("target", ["b"])
        await owner.store.create_segment("a")
        await make(owner.store, "other", b"o")
        await anyio.sleep(80)
        # The first source may be spliced already.
        assert published(owner) == {**before, "other": 1}
        assert not list(broken_publication(owner.container))
        await owner.crash()
        owner = await world.start(tasks)
        await anyio.sleep(80)
        assert published(owner) == {**before, "other": 1}
        world.chunks.script = None
        await owner.store.flush()
        assert published(owner) == {"target": 15, "a": 0, "other": 1}
        assert not list(broken_publication(owner.container))
        await owner.stop()


async def test_f10_what_is_held_back_for_a_late_segment_is_published_at_its_end() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        for name in ("late", "good"):
            await make(owner.store, name, name.encode())
        sid = owner.container.segments.require("late").sid
        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=20.0)
            if call.verb == "create_with_content" and f"/{sid:016x}/" in call.name
            else None
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(owner.store.flush)
            await anyio.sleep(10)
            assert published(owner) == {"good": 4}
        assert published(owner) == {"good": 4, "late": 4}


async def test_f10_a_late_flush_of_an_earlier_cut_does_not_reach_the_present_one() -> None:
    """It ends during the next cycle, which must hold the segment back all the same."""
    world = ContainerWorld()
    async with world.owner() as owner:
        for name in ("late", "other"):
            await make(owner.store, name, name.encode(), flushed=True)
        seconds = {"late": 5.0, "other": 0.0}
        world.chunks.script = takes(owner, seconds)
        await owner.store.append("late", b" first")
        owner.begin_cycle()
        await anyio.sleep(4.5)
        seconds["other"] = 0.9
        await owner.store.append("other", b" first")
        await owner.store.append("late", b" second")
        owner.begin_cycle()
        for _ in range(12):
            await anyio.sleep(0.3)
            assert not list(broken_publication(owner.container))
        await owner.store.flush()
        assert published(owner) == {"late": 17, "other": 11}


async def test_f10_an_open_transaction_is_held_back_with_its_target() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "other", b"o", flushed=True)
        await make(owner.store, "target", b"t")
        world.chunks.script = fails(owner, "target")
        await owner.store.begin_transaction("target", "txn", lease=10_000.0)
        await owner.store.append("other", b"o")
        await anyio.sleep(40)
        assert published(owner)["other"] == 2
        assert "target" in held(owner)
        assert not list(broken_publication(owner.container))
        world.chunks.script = None
        await owner.store.flush()
        assert not list(broken_publication(owner.container))


async def test_f10_rows_that_are_held_back_survive_a_checkpoint_and_a_crash() -> None:
    """An attribute that was acked was lost: neither the runs nor the next owner had it."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for name in ("bad", "other"):
            await make(owner.store, name, b"first", flushed=True)
        world.chunks.script = fails(owner, "bad")
        await owner.store.update_attributes("bad", [AttributeUpdate(b"i" * 16, 7)])
        for name in ("bad", "other"):
            await owner.store.append(name, b" second")
        await anyio.sleep(40)
        assert (published(owner), held(owner)) == ({"bad": 5, "other": 12}, {"bad"})
        await owner.checkpoint()
        await owner.crash()
        owner = await world.start(tasks)
        page = await owner.store.list_attributes("bad", b"")
        assert dict(page.attributes) == {b"i" * 16: 7}
        world.chunks.script = None
        await owner.store.flush()
        assert (published(owner), held(owner)) == ({"bad": 12, "other": 12}, set())
        assert not list(broken_publication(owner.container))
        await owner.stop()


async def test_f10_a_merge_between_cut_and_end_of_a_cycle_ties_its_segments_in_the_next_one() -> None:
    """The cycle publishes none of the merge's rows, so the closure must outlive it."""
    writer_options = replace(OPTIONS.writer, flush_age=5.0, error_pause=10.0)
    world = ContainerWorld(replace(OPTIONS, writer=writer_options))
    async with world.owner() as owner:
        for name in ("bad", "slow", "target", "source"):
            await make(owner.store, name, b"1" * 100, flushed=True)
        await owner.store.seal_segment("source")
        await owner.store.flush()
        seconds = {"bad": inf, "slow": 0.9, "target": 0.0}
        world.chunks.script = takes(owner, seconds)
        await anyio.sleep(10)
        for name in ("bad", "slow"):
            await owner.store.append(name, b"2")
        owner.begin_cycle()
        await anyio.sleep(0.3)
        seconds["target"] = inf
        await owner.store.append("target", b"2")
        await owner.store.merge_segments("target", ["source"])
        for _ in range(4):
            await owner.store.append("slow", b"3")
            await anyio.sleep(12)
            assert {"bad"} <= held(owner)
            assert not list(broken_publication(owner.container))
        assert {"bad", "target", "source"} <= held(owner)
        world.chunks.script = None
        await owner.store.flush()
        assert not owner.container.state.table.runs.held
        assert not list(broken_publication(owner.container))


async def test_f7_a_segment_whose_flushes_always_take_long_is_published_in_the_end() -> None:
    """Each cycle ended before its flush, and the next one began with a later cut."""
    world = ContainerWorld()
    async with world.owner() as owner:
        for name in ("slow", "other"):
            await make(owner.store, name, b"")
        sid = owner.container.segments.require("slow").sid
        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=3.0)
            if call.verb in ("write", "create_with_content") and f"/{sid:016x}/" in call.name
            else None
        )
        for _ in range(200):
            for name in ("slow", "other"):
                await owner.store.append(name, b"x")
            await anyio.sleep(1)
        assert published(owner).get("slow", 0) > 100
        assert not list(broken_publication(owner.container))
