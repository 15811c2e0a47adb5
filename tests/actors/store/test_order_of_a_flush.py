"""What a flush writes to long-term storage, and in which order: data, then the rows that describe it, then
the element that publishes both; deletions come last (rules F2, F5, F10, M10, G6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from simulation.records import broken_publication

from support.container_world import MIB, OPTIONS, ContainerWorld, Owner, until
from support.patience import scaled
from support.stores import KIB, make
from support.table_rows import RUNS, published_rows
from tierlog import AttributeUpdate, Unavailable
from tierlog.actors.container.attribute_rows import attribute_key, value_of
from tierlog.actors.container.segment_rows import image_key, load_of_row
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.journal.manifest.chain import journal_prefix
from tierlog.journal.operations.segment_image import decode_image
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage

pytestmark = pytest.mark.anyio

PATIENT = replace(
    OPTIONS,
    writer=replace(OPTIONS.writer, flush_age=3600.0, segment_deadline=1000.0),
    collector=CollectorOptions(delay=0.0, listings=()),
)
"""A cycle waits for each of its segments; what is garbage may be deleted at once."""
STEPS = ("data", "rows", "element", "deletion")
WRITES = ("create", "create_with_content", "write", "concat")
ID = bytes(range(16))
"""Of an attribute, which is a row and in no image (M19)."""


def step_of(call: Call) -> str | None:
    if call.verb == "delete":
        return "deletion" if call.name.startswith("containers/") else None
    places = {"containers/": "data", RUNS: "rows", journal_prefix(0): "element"}
    is_write = call.verb in WRITES
    return next((step for place, step in places.items() if is_write and call.name.startswith(place)), None)


class Held(FaultyChunkStorage):
    """Calls for which ``is_held`` holds wait until they ``may_go_on``."""

    def __init__(self, world: ContainerWorld) -> None:
        super().__init__(MemoryChunkStorage(world.memory))
        self.is_held: Callable[[Call], bool] = lambda call: False
        self.waits, self.may_go_on = anyio.Event(), anyio.Event()

    async def _call(self, verb: str, name: str, act: Callable[[], Awaitable[Any]], *rest: Any) -> Any:
        async def once_it_may() -> Any:
            if self.is_held(Call(0, verb, name)):
                self.waits.set()
                await self.may_go_on.wait()
            return await act()

        return await super()._call(verb, name, once_it_may, *rest)

    @property
    def steps(self) -> list[str]:
        return [step for call in self.calls if (step := step_of(call)) is not None]


async def set_row(owner: Owner, name: str, value: int) -> None:
    await owner.store.update_attributes(name, [AttributeUpdate(ID, value)])


async def prepare(chunks: Held, owner: Owner) -> None:
    for name in ("s/0", "s/1"):
        await owner.store.create_segment(name)
    await owner.store.create_table("t")
    for name in ("truncated", "deleted"):
        await make(owner.store, name, bytes(200 * KIB))
    await owner.store.flush()
    del chunks.calls[:]


async def change_everything(owner: Owner) -> None:
    """Data, attributes, a merge, rows of a table, and chunks that become garbage."""
    store = owner.store
    for name in ("s/0", "s/1"):
        await store.append(name, b"data of " + name.encode())
        await set_row(owner, name, 1)
    await make(store, "s/0#part", b"merged", sealed=True)
    await store.merge_segments("s/0", ["s/0#part"])
    await store.table("t").put(b"key", b"value")
    await store.truncate_segment("truncated", 100 * KIB)
    await store.delete_segment("deleted")


@pytest.mark.parametrize("held", STEPS[:-1])
async def test_no_step_of_a_flush_begins_before_the_one_before_it_has_ended(held: str) -> None:
    """F10, M10, G6: one call of each step is held up in turn; of the data that of one segment, beside which
    the others are flushed."""
    world = ContainerWorld(PATIENT)
    world.chunks = chunks = Held(world)
    async with world.owner() as owner:
        await prepare(chunks, owner)
        await change_everything(owner)
        slow = f"/{owner.container.segments.require('s/1').sid:016x}/"
        chunks.is_held = lambda call: step_of(call) == held and (held != "data" or slow in call.name)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(owner.store.flush)
            await chunks.waits.wait()
            if held == "data":
                await until(lambda: chunks.steps.count("data") >= 3)
            await anyio.wait_all_tasks_blocked()
            assert set(chunks.steps) == set(STEPS[: STEPS.index(held) + 1])
            chunks.may_go_on.set()
        await until(lambda: chunks.steps.count("deletion") >= 5)
        assert not list(broken_publication(owner.container))


def published_attribute(owner: Owner, name: str) -> int | None:
    row = published_rows(owner.container).get(attribute_key(owner.container.segments.require(name).sid, ID))
    return None if row is None else value_of(row)


def published_length(owner: Owner, name: str) -> int:
    load = load_of_row(published_rows(owner.container)[image_key(owner.container.segments.require(name).sid)])
    assert load is not None
    return decode_image(load.image).length


async def test_f10_the_attributes_of_a_segment_are_published_with_its_bytes_and_never_before() -> None:
    """Those in rows as well: a segment whose bytes cannot be flushed keeps its earlier ones."""
    brisk = replace(PATIENT.writer, flush_age=0.05, error_pause=0.01)
    world = ContainerWorld(replace(PATIENT, writer=brisk))
    async with world.owner() as owner:
        for name in ("bad", "good"):
            await make(owner.store, name, b"first")
            await set_row(owner, name, 1)
        await owner.store.flush()
        bad = f"/{owner.container.segments.require('bad').sid:016x}/"
        world.chunks.script = lambda call: (
            Fault(FaultKind.BEFORE) if call.verb in WRITES and bad in call.name else None
        )
        for name in ("bad", "good"):
            await owner.store.append(name, b" second")
            await set_row(owner, name, 2)
        with pytest.raises(Unavailable):
            await owner.store.flush()
        with anyio.fail_after(scaled(10)):
            while published_length(owner, "good") < 12:
                await anyio.sleep(0.001)
        assert published_attribute(owner, "good") == 2
        assert (published_length(owner, "bad"), published_attribute(owner, "bad")) == (5, 1)

        world.chunks.script = None
        await owner.store.flush()
        assert (published_length(owner, "bad"), published_attribute(owner, "bad")) == (12, 2)


async def test_f5_a_cycle_due_by_size_publishes_nothing_and_the_next_full_one_all_that_changed() -> None:
    """Rows have no size and no age: an attribute and an empty segment are published as the megabyte is."""
    world = ContainerWorld(PATIENT)
    async with world.owner() as owner:
        for name in ("large", "small"):
            await make(owner.store, name)
        await owner.store.flush()
        elements = owner.container.state.manifest.highest_cycle
        published = published_rows(owner.container)
        await set_row(owner, "small", 1)
        await owner.store.create_segment("new")
        await owner.store.append("large", bytes(MIB))
        await until(lambda: owner.container.segments.require("large").flushed == MIB)
        await anyio.wait_all_tasks_blocked()
        assert owner.container.state.manifest.highest_cycle == elements
        assert published_rows(owner.container) == published

        await owner.store.flush()
        assert published_attribute(owner, "small") == 1
        assert published_length(owner, "large") == MIB
        assert published_length(owner, "new") == 0
        assert owner.container.state.table.rows == 0
