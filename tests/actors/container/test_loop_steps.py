"""How long one step of the event loop takes in a container with very many segments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner
from support.loop_steps import CallCounter, LongestSteps, recorded_steps
from support.patience import scaled
from tierlog import AttributeUpdate
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.actors.container.local_disk import RunFolder
from tierlog.actors.container.pipeline import PipelineOptions
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.gateway.wire.batch import BatchItem
from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.sorted_runs import merge_helper
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = pytest.mark.anyio

TIGHT = {"flush": 0.003}
"""Seconds with 5,000 segments. This takes half of it, and without slices two to four times as long; the usual
limit tells the two apart from 20,000 on."""
TOGETHER = 50
FEW = 20
WANTED = 1000
ON_ORDER = replace(
    OPTIONS,
    admission=attrs.evolve(OPTIONS.admission, row_cycle_bytes=1 << 40, segments=1 << 40),
    checkpoint=CheckpointOptions(wal_bytes=1 << 40, idle_segments=256),
    writer=WriterOptions(flush_age=1e6),
)
"""Cycles and checkpoints begin when they are called, and a few idle segments are enough to unload them."""


def names_of(count: int) -> list[str]:
    """Not in the order of their creation. Half of them have one prefix: so many fill a slice of a listing."""
    return [f"{'rs'[number % 2]}{number * 7919 % 1_000_003:07d}" for number in range(count)]


async def together(act: Callable[[str], Coroutine[Any, Any, object]], names: list[str]) -> None:
    """Small groups: the step that applies and publishes a group grows with it."""
    for start in range(0, len(names), TOGETHER):
        async with anyio.create_task_group() as tasks:
            for name in names[start : start + TOGETHER]:
                tasks.start_soon(act, name)


def local_runs(folder: Path) -> RunFolder:
    """A simulated disk takes its time for each sector, on the loop."""
    files = LocalFiles()
    return RunFolder(files, str(folder), partial(merge_helper.merge, files=files))


async def one_life(world: ContainerWorld, names: list[str], longest: LongestSteps) -> None:
    async with anyio.create_task_group() as tasks:
        with longest.of("open"):
            owner = await world.start(tasks)
        with longest.of("list"):
            found = await owner.store.list_segments()
        # Not in the phase: to sort 100,000 names takes 14 ms.
        assert found == sorted(names)
        with longest.of("list some"):
            assert len(await owner.store.list_segments("r")) < len(names)

        await together(lambda name: owner.store.append(name, b"x"), names)
        with longest.of("flush"):
            await owner.store.flush()
        with longest.of("flush of few"):
            await owner.store.append(names[0], b"x")
            await owner.store.flush()
        with longest.of("checkpoint"):
            async with anyio.create_task_group() as others:
                others.start_soon(owner.checkpoint)
                for name in names[:: len(names) // 20]:
                    await owner.store.append(name, b"x")
        with longest.of("close"):
            await owner.stop()
        with longest.of("open with a checkpoint"):
            owner = await world.start(tasks)
        with longest.of("end"):
            await owner.crash()


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "count",
    [5_000, pytest.param(100_000, marks=[pytest.mark.extended, pytest.mark.timeout(600)])],
)
async def test_no_step_grows_with_the_number_of_segments(count: int, tmp_path: Path) -> None:
    """M22: a listing is made of pages. C7: the begin of a checkpoint copies nothing. F1:
    a cycle fixes its cut in one step, and captures in slices."""
    names = names_of(count)
    world, longest = ContainerWorld(ON_ORDER), LongestSteps(TIGHT if count == 5_000 else {})
    world.runs = local_runs(tmp_path)
    async with world.owner() as owner:
        await together(owner.store.create_segment, names)
        await owner.store.flush()
        await owner.checkpoint()
    for _ in longest.attempts():
        await one_life(world, names, longest)


async def most_calls(count: int, runs: RunFolder) -> dict[str, float]:
    """The calls of functions in the longest step of each phase."""
    names = names_of(count)
    world = ContainerWorld(ON_ORDER)
    world.runs = runs
    async with world.owner() as owner:
        await together(owner.store.create_segment, names)
        await owner.store.flush()
        await owner.checkpoint()
    with CallCounter() as counter:
        longest = LongestSteps(clock=counter)
        await one_life(world, names, longest)
    return longest.seconds


@pytest.mark.extended
@pytest.mark.one_loop
async def test_no_step_makes_more_calls_with_four_times_the_segments(tmp_path: Path) -> None:
    """As above, whatever else the machine does."""
    few = await most_calls(600, local_runs(tmp_path / "few"))
    many = await most_calls(2_400, local_runs(tmp_path / "many"))

    # A thousand take less than a millisecond, and may be a slice that 600 segments did not fill.
    grown = {phase: (few[phase], calls) for phase, calls in many.items() if calls > 1.5 * few[phase] + 1000}
    assert grown == {}


@pytest.mark.one_loop
async def test_no_step_grows_with_the_number_of_appends_that_arrive_together() -> None:
    """A group is decided, published and answered in slices, and a batch enters in slices: 20,000 appends at
    once took steps of 8 to 24 ms."""
    names = [f"s{number:03d}" for number in range(1000)]
    appends = [BatchItem(names[number % len(names)], b"x") for number in range(20_000)]
    world, longest = ContainerWorld(), LongestSteps()
    async with world.owner() as owner:
        await together(owner.store.create_segment, names)
        for _ in longest.attempts():
            with longest.of("append"):
                await anyio.lowlevel.checkpoint()  # asyncio records no step that began before
                outcomes = await owner.store.append_each(appends)
            assert all(type(outcome) is int for outcome in outcomes)


async def test_other_tasks_run_between_steps_that_are_set_smaller() -> None:
    world = ContainerWorld(options=replace(OPTIONS, pipeline=PipelineOptions(group_count=16)))
    async with world.owner() as owner, anyio.create_task_group() as tasks:
        await owner.store.create_segment("s")
        sequences = [owner.container.state.sequence]

        async def watch() -> None:
            while True:
                await anyio.lowlevel.checkpoint()
                sequences.append(owner.container.state.sequence)

        tasks.start_soon(watch)
        await owner.store.append_each([BatchItem("s", b"x")] * 300)
        tasks.cancel_scope.cancel()

    assert sequences[-1] - sequences[0] == 300
    assert max(after - before for before, after in pairwise(sequences)) < 100


async def unload_idle(owner: Owner, kept: str) -> None:
    """Return once most segments are cold."""
    await owner.store.flush()
    segments = owner.container.segments
    with anyio.fail_after(scaled(60)):
        while len(segments) > 2 * FEW:
            await owner.store.append(kept, b"")  # a group, after which idle segments are looked for
            await anyio.sleep(0.001)


@asynccontextmanager
async def owner_of_cold(names: list[str], runs: RunFolder) -> AsyncIterator[Owner]:
    """Of idle segments, most of which will be cold."""
    world = ContainerWorld(replace(ON_ORDER, active_segments_max=FEW))
    world.runs = runs
    async with world.owner() as owner:
        await together(owner.store.create_segment, ["kept", *names])
        await owner.store.flush()
        await together(lambda name: owner.store.append(name, b"x"), names)
        yield owner


async def load_at_once(owner: Owner, wanted: list[str], longest: LongestSteps) -> None:
    with longest.of("unload"):
        await unload_idle(owner, "kept")
    appends = [BatchItem(name, b"y") for name in wanted]
    with longest.of("load"):
        await anyio.lowlevel.checkpoint()  # asyncio records no step that began before
        outcomes = await owner.store.append_each(appends)
    assert all(type(outcome) is int for outcome in outcomes)
    assert all(owner.container.segments.in_memory(name) for name in wanted)
    with longest.of("list of cold ones"):
        await owner.store.list_segments()


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "count",
    [3_000, pytest.param(100_000, marks=[pytest.mark.extended, pytest.mark.timeout(600)])],
)
async def test_no_step_grows_with_the_number_of_cold_segments(count: int, tmp_path: Path) -> None:
    """M4: many that are wanted together are looked up, loaded and decided in slices. M5: they are unloaded in
    slices."""
    names = names_of(count)
    longest = LongestSteps()
    async with owner_of_cold(names, local_runs(tmp_path)) as owner:
        for attempt in longest.attempts():
            await load_at_once(owner, names[attempt :: count // WANTED], longest)


@pytest.mark.extended
@pytest.mark.one_loop
async def test_no_step_makes_more_calls_with_four_times_the_cold_segments(tmp_path: Path) -> None:
    """As above, whatever else the machine does."""
    found: list[dict[str, float]] = []
    for count in (600, 2_400):
        names = names_of(count)
        async with owner_of_cold(names, local_runs(tmp_path / f"{count}")) as owner:
            with CallCounter() as counter:
                longest = LongestSteps(clock=counter)
                await load_at_once(owner, names[: 3 * count // 4], longest)
        found.append(longest.seconds)

    few, many = found
    grown = {phase: (few[phase], calls) for phase, calls in many.items() if calls > 1.5 * few[phase] + 1000}
    assert grown == {}


async def add_records(owner: Owner, first: int, count: int) -> None:
    """Records that nothing but the system table knows, and an append, which makes a cycle due."""
    for start in range(first, first + count, TOGETHER):
        # Not in the order of their keys.
        keys = [
            f"z/{number * 7919 % 1_000_003:07d}"
            for number in range(start, min(start + TOGETHER, first + count))
        ]
        await owner.container.metadata.commit(dict.fromkeys(keys, 0), dict.fromkeys(keys, bytes(60)))
    await owner.store.append("s", b"x")


def lose_elements(call: Call) -> Fault | None:
    return (
        Fault(FaultKind.BEFORE) if call.verb == "create_with_content" and "/journal/" in call.name else None
    )


async def one_life_of_records(world: ContainerWorld, first: int, count: int, longest: LongestSteps) -> None:
    """Crash before the runs of ``count`` new records count, and after it, with a few dirty rows each time."""
    numbers = iter(range(first + count, first + count + FEW))

    async def change_one_and_crash() -> None:
        await add_records(owner, next(numbers), 1)
        await owner.crash()

    async def publish_few(phase: str) -> None:
        assert owner.container.state.table.rows
        with longest.of(f"checkpoint {phase}"):
            await owner.checkpoint()
        world.chunks.script = None
        with longest.of(f"flush {phase}"):
            await owner.store.flush()
        assert owner.container.state.table.rows == 0

    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await add_records(owner, first, count)
        await owner.crash()
        with longest.of("open with dirty records"):
            owner = await world.start(tasks)
        assert owner.container.state.table.rows >= count

        world.chunks.script = lose_elements
        with longest.of("flush that fails"), pytest.raises(Unavailable):
            await owner.store.flush()
        await change_one_and_crash()
        with longest.of("open with a recorded element"):
            owner = await world.start(tasks)
        assert owner.container.state.table.rows >= count
        await publish_few("after a recorded element")

        await change_one_and_crash()
        with longest.of("open with clean records"):
            owner = await world.start(tasks)
        assert owner.container.state.table.rows < FEW
        await publish_few("after clean records")
        await owner.stop()


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "count",
    [5_000, pytest.param(200_000, marks=[pytest.mark.extended, pytest.mark.timeout(600)])],
)
async def test_no_step_grows_with_the_number_of_records(count: int, tmp_path: Path) -> None:
    """M8, M10: clean rows are released in replay too, so that neither checkpoints nor cycles visit them."""
    world, longest = ContainerWorld(replace(ON_ORDER, merge_fan_out=1000)), LongestSteps()
    world.runs = local_runs(tmp_path)
    async with world.owner() as owner:
        await owner.store.create_segment("s")
    for attempt in longest.attempts():
        await one_life_of_records(world, attempt * (count + FEW), count, longest)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "count",
    [3_000, pytest.param(100_000, marks=[pytest.mark.extended, pytest.mark.timeout(600)])],
)
async def test_no_step_grows_with_the_rows_of_runs_that_are_merged(count: int, tmp_path: Path) -> None:
    """M7: runs are published and merged, their objects put and deleted, while appends go on."""
    world, longest = ContainerWorld(replace(ON_ORDER, merge_fan_out=2)), LongestSteps()
    world.runs = local_runs(tmp_path)
    async with world.owner() as owner:
        await owner.store.create_segment("s")
        for attempt in longest.attempts():
            merges = owner.container.statistics().table.merges
            await add_records(owner, 2 * attempt * count, count)
            await owner.store.flush()
            await add_records(owner, (2 * attempt + 1) * count, count)
            with longest.of("publish and merge"), anyio.fail_after(scaled(60)):
                await owner.store.flush()
                while owner.container.statistics().table.merges == merges:
                    await owner.store.append("s", b"x")
                    await anyio.sleep(0.001)
        assert owner.container.statistics().table.rows <= FEW


async def one_merge(owner: Owner, names: list[str], longest: LongestSteps) -> None:
    """Merge segments of these names into one, and flush all."""

    async def seal(name: str) -> None:
        await owner.store.append(name, b"x")
        await owner.store.seal_segment(name)

    target = f"{names[0]}.target"
    await together(owner.store.create_segment, [target, *names])
    await together(seal, names)
    with longest.of("merge"):
        for start in range(0, len(names), TOGETHER):
            await owner.store.merge_segments(target, names[start : start + TOGETHER])
    with longest.of("checkpoint of a merge"):
        await owner.checkpoint()
    with longest.of("flush of a merge"):
        await owner.store.flush()
    assert await owner.store.read(target, 0, len(names)) == b"x" * len(names)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "count",
    [2_000, pytest.param(50_000, marks=[pytest.mark.extended, pytest.mark.timeout(600)])],
)
async def test_no_step_grows_with_the_number_of_segments_that_are_merged_into_one(
    count: int, tmp_path: Path
) -> None:
    """F3: sources are captured, joined and flushed before their target."""
    world, longest = ContainerWorld(ON_ORDER), LongestSteps()
    world.runs = local_runs(tmp_path)
    async with world.owner() as owner:
        for attempt in longest.attempts():
            await one_merge(owner, [f"s{attempt}.{number}" for number in range(count)], longest)


ROWS = 1000


async def update_at_once(owner: Owner, names: list[str], longest: LongestSteps, phase: str) -> None:
    """Several updates of each table, all at the same time."""
    rows = {b"%03d" % number: b"v" for number in range(ROWS)}
    with longest.of(phase):
        await anyio.lowlevel.checkpoint()  # asyncio records no step that began before
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(owner.store.table(name).put_many, rows)


@pytest.mark.one_loop
async def test_no_step_grows_with_the_number_of_updates_of_tables_that_arrive_together(
    tmp_path: Path,
) -> None:
    """M18: a thousand rows are as much as one step takes. 150 updates of 1,000 rows each took steps of 36 ms,
    and of 334 ms if they waited for cold tables."""
    world, longest = ContainerWorld(replace(ON_ORDER, active_segments_max=FEW)), LongestSteps()
    world.runs = local_runs(tmp_path)
    names = [f"t{number}" for number in range(4 * FEW)]
    async with world.owner() as owner:
        await owner.store.create_segment("kept")
        await together(owner.store.create_table, names)
        for _ in longest.attempts():
            await unload_idle(owner, "kept")
            cold = [name for name in names if owner.container.segments.in_memory(name) is None]
            await update_at_once(owner, cold[:FEW], longest, "updates of cold tables")
            await update_at_once(owner, cold[-1:] * FEW, longest, "updates of a cold table")
            await update_at_once(owner, names[:1] * FEW, longest, "updates of a table")


@pytest.mark.one_loop
async def test_no_step_grows_with_the_number_of_updates_of_attributes_that_arrive_together() -> None:
    """100 updates of 1,000 attributes each took steps of 21 ms."""
    updates = [AttributeUpdate(f"{number}", 1) for number in range(ROWS)]
    longest = LongestSteps()
    async with ContainerWorld().owner() as owner:
        await owner.store.create_segment("s")
        for _ in longest.attempts():
            with longest.of("updates"):
                await anyio.lowlevel.checkpoint()  # asyncio records no step that began before
                async with anyio.create_task_group() as tasks:
                    for _ in range(FEW):
                        tasks.start_soon(owner.store.update_attributes, "s", updates)


@pytest.mark.one_loop
async def test_no_step_grows_with_the_number_of_attributes_in_a_page() -> None:
    async with ContainerWorld().owner() as owner:
        await owner.store.create_segment("s")
        for start in range(0, 4096, 1024):
            updates = [AttributeUpdate(f"{number}", 1) for number in range(start, start + 1024)]
            await owner.store.update_attributes("s", updates)
        with CallCounter() as counter:
            longest = LongestSteps(clock=counter)
            for limit in (1024, 4096):
                with longest.of(f"{limit}"):
                    await anyio.lowlevel.checkpoint()  # asyncio records no step that began before
                    page = await owner.store.list_attributes("s", limit=limit)
                assert len(page.attributes) == limit
    few, many = longest.seconds["1024"], longest.seconds["4096"]
    assert many < 1.5 * few + 1000, longest.seconds


async def test_steps_of_another_threads_event_loop_do_not_count() -> None:
    """Each thread has a clock of its own: a step that began by the one and ended by the other took the whole
    time that the process had run for."""
    times = {threading.get_ident(): 60.0}
    began, ended = threading.Event(), threading.Event()

    def runs_meanwhile() -> None:
        began.wait()
        asyncio.run(asyncio.sleep(0))
        ended.set()

    with recorded_steps(1.0, lambda: times.get(threading.get_ident(), 0.0)) as steps:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, runs_meanwhile)
            await anyio.sleep(0.001)
            began.set()
            ended.wait(scaled(30))

    assert ended.is_set()
    assert steps.longest == 0.0
