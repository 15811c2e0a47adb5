"""A model of the store: segments are byte strings. Random verbs, flushes, checkpoints, crashes and failovers
must agree with it.

Guards C1, C3, F3, F4, G1: whatever an owner acked is what every later owner says, and
in the end long-term storage holds the referenced chunks and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import anyio
import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import tierlog
from support.container_world import OPTIONS, ContainerWorld, Owner, read_all, referenced_chunks
from tierlog import AttributeUpdate, AttributeUpdateKind, SegmentStore, StoreConfig
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.actors.settings.configuration import WriterConfig
from tierlog.storage_backends.base.errors import NotOwner, OutcomeUnknown, SegmentError, TierlogError
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

NAMES = ("a", "a#1", "a#2", "a#3")


@attrs.define
class ModelSegment:
    data: bytearray = attrs.field(factory=bytearray)
    start: int = 0
    sealed: bool = False
    attributes: dict[str, int] = attrs.field(factory=dict)
    writers: dict[bytes, tuple[int, int, int]] = attrs.field(factory=dict)
    """writer: (first event, last event, offset) of its latest append."""


class Refused(Exception):
    """What the model answers in place of an error of the store."""


def need(holds: object, why: str) -> None:
    if not holds:
        raise Refused(why)


class Model:
    """The store as it should be, with no moving part."""

    def __init__(self) -> None:
        self.segments: dict[str, ModelSegment] = {}

    def find(self, name: str) -> ModelSegment:
        need(name in self.segments, "SegmentNotFound")
        return self.segments[name]

    def create(self, name: str) -> None:
        need(name not in self.segments, "SegmentExists")
        self.segments[name] = ModelSegment()

    def append(
        self, name: str, data: bytes, writer: bytes = b"", first: int = 0, count: int = 1
    ) -> int | None:
        segment = self.find(name)
        last = first + count - 1
        if writer and (known := segment.writers.get(writer)):
            if last <= known[1]:
                return known[2] if (first, last) == known[:2] else None
            need(first > known[1], "InvalidArgument")
            need(first == known[1] + 1, "OutOfOrder")
        need(not segment.sealed, "SegmentSealed")
        offset = len(segment.data)
        segment.data += data
        if writer:
            segment.writers[writer] = (first, last, offset)
        return offset

    def seal(self, name: str) -> int:
        self.find(name).sealed = True
        return len(self.find(name).data)

    def truncate(self, name: str, offset: int) -> None:
        segment = self.find(name)
        need(offset <= len(segment.data), "BadOffset")
        segment.start = max(segment.start, offset)

    def delete(self, name: str) -> None:
        self.find(name)
        del self.segments[name]

    def add(self, name: str, value: int) -> dict[str, int]:
        attributes = self.find(name).attributes
        attributes["sum"] = attributes.get("sum", 0) + value
        return {"sum": attributes["sum"]}

    def merge(self, target: str, sources: tuple[str, ...]) -> int:
        into = self.find(target)
        need(not into.sealed, "SegmentSealed")
        found = [self.find(name) for name in sources]
        for segment in found:
            need(segment is not into, "InvalidArgument")
            need(segment.sealed, "SegmentNotSealed")
            need(not segment.start, "InvalidArgument")
        offset = len(into.data)
        for name, segment in zip(sources, found, strict=True):
            into.data += segment.data
            del self.segments[name]
        return offset


# --- the steps ----------------------------------------------------------------------------------

names = st.sampled_from(NAMES)
payloads = st.binary(max_size=40) | st.integers(1, 90_000).map(lambda size: bytes((size % 251,)) * size)
verbs = st.one_of(
    st.tuples(st.just("create"), names),
    st.tuples(st.just("append"), names, payloads),
    st.tuples(
        st.just("post"), names, payloads, st.sampled_from((b"w", b"v")), st.integers(0, 6), st.integers(1, 3)
    ),
    st.tuples(st.just("seal"), names),
    st.tuples(st.just("truncate"), names, st.integers(0, 100_000)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("add"), names, st.integers(-5, 5)),
    st.tuples(st.just("merge"), names, st.lists(names, min_size=1, max_size=2, unique=True).map(tuple)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("reopen")),
)
STAGE: list[tuple[Any, ...]] = [
    ("create", "a"),
    ("create", "a#1"),
    ("append", "a", b"base"),
    ("append", "a#1", b"part"),
]


async def both(model: Callable[[], Any], store: Callable[[], Awaitable[Any]]) -> None:
    """The model and the store give the same answer, or refuse alike."""
    try:
        expected, refusal = model(), ""
    except Refused as refused:
        expected, refusal = None, str(refused)

    assert await answer_of(store) == (refusal or expected)


async def answer_of(verb: Callable[[], Awaitable[Any]]) -> Any:
    """What a verb returns, or the name of the error that it refuses with."""
    try:
        return await verb()
    except (SegmentError, tierlog.InvalidArgument) as error:
        return type(error).__name__


async def do(model: Model, store: SegmentStore, verb: str, *args: Any) -> None:
    """One verb on both."""
    if verb == "create":
        await both(lambda: model.create(*args), lambda: store.create_segment(*args))
    elif verb == "append":
        await both(lambda: model.append(*args), lambda: store.append(*args))
    elif verb == "post":
        name, data, writer, first, count = args
        events = [data, *(b"" for _ in range(count - 1))]
        await both(
            lambda: model.append(*args),
            lambda: store.append_many(name, events, writer_id=writer, first_event_number=first),
        )
    elif verb == "seal":
        await both(lambda: model.seal(*args), lambda: store.seal_segment(*args))
    elif verb == "truncate":
        await both(lambda: model.truncate(*args), lambda: store.truncate_segment(*args))
    elif verb == "delete":
        await both(lambda: model.delete(*args), lambda: store.delete_segment(*args))
    elif verb == "add":
        name, value = args
        update = AttributeUpdate("sum", value, AttributeUpdateKind.ACCUMULATE)
        await both(lambda: model.add(name, value), lambda: store.update_attributes(name, [update]))
    elif verb == "merge":
        await both(lambda: model.merge(*args), lambda: store.merge_segments(*args))
    elif verb == "flush":
        await store.flush()
    else:
        raise AssertionError(verb)


async def compare(model: Model, store: SegmentStore) -> None:
    assert await store.list_segments() == sorted(model.segments)
    for name, segment in model.segments.items():
        info = await store.segment_info(name)
        assert (info.length, info.start_offset, info.sealed) == (
            len(segment.data),
            segment.start,
            segment.sealed,
        )
        assert dict(info.attributes) == segment.attributes
        assert await read_all(store, name, segment.start, 50_000) == bytes(segment.data[segment.start :])
        for writer, (_, last, _) in segment.writers.items():
            assert await store.last_event_number(name, writer) == last


# --- one container on memory, with every kind of trouble ----------------------------------------

troubles = st.one_of(
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("failover")),
    st.tuples(st.just("wait")),
    st.tuples(st.just("crash in flush"), st.integers(1, 40)),
    st.tuples(st.just("faults"), st.integers(0, 1 << 32)),
    st.tuples(st.just("no faults")),
)

MODEL_OPTIONS = attrs.evolve(
    OPTIONS, flush_bytes=30_000, active_segments_max=1, collector=CollectorOptions(delay=60)
)


def random_faults(seed: int) -> Callable[[Call], Fault | None]:
    """A third of the changes in long-term storage go wrong in one way or another."""
    kinds = (FaultKind.BEFORE, FaultKind.AFTER, FaultKind.LOST, FaultKind.PARTIAL)

    def script(call: Call) -> Fault | None:
        draw = (call.number * 2654435761 ^ seed) % 1009
        if draw % 3 or call.verb not in ("write", "create_with_content", "delete"):
            return None

        return Fault(kinds[draw // 3 % 4], keep=draw % 50)

    return script


class Life:
    """Owners, one after the other, that the model is compared with."""

    def __init__(self, world: ContainerWorld, tasks: anyio.abc.TaskGroup) -> None:
        self.world = world
        self.model = Model()
        self._tasks = tasks
        self.owner: Owner

    async def begin(self) -> None:
        while True:
            try:
                self.owner = await self.world.start(self._tasks)
            except OutcomeUnknown:
                continue  # its supervisor starts it again

            return

    async def step(self, verb: str, *args: Any) -> None:
        trouble = self._troubles.get(verb)
        if trouble is None:
            await do(self.model, self.owner.store, verb, *args)
        else:
            await trouble(self, *args)

    async def flush(self) -> None:
        if self.world.chunks.script is None:
            await self.owner.store.flush()
            return

        try:
            await self.owner.store.flush()
        except TierlogError:
            assert not self.owner.ended.is_set()

    async def wait(self) -> None:
        await anyio.sleep(100)

    async def checkpoint(self) -> None:
        await self.owner.checkpoint()

    async def reopen(self) -> None:
        await self.owner.stop()
        await self.begin()

    async def crash(self) -> None:
        await self.owner.crash()
        await self.begin()

    async def failover(self) -> None:
        """The next owner opens while this one is alive, which is fenced."""
        zombie = self.owner
        await self.begin()
        with pytest.raises(TierlogError):
            await zombie.store.create_segment("zombie")
        await zombie.ended.wait()
        assert isinstance(zombie.error, NotOwner)

    async def crash_in_flush(self, turns: int) -> None:
        async with anyio.create_task_group() as tasks:

            async def flush() -> None:
                try:
                    await self.owner.store.flush()
                except TierlogError:
                    return

            tasks.start_soon(flush)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await self.owner.crash()
        await self.begin()

    async def faults(self, seed: int) -> None:
        self.world.chunks.script = random_faults(seed)

    async def no_faults(self) -> None:
        self.world.chunks.script = None

    async def end(self) -> None:
        """Once all is quiet, nothing was lost, nothing leaked."""
        self.world.chunks.script = None
        await self.reopen()
        await compare(self.model, self.owner.store)
        await self.owner.store.flush()
        await anyio.sleep(500)
        await compare(self.model, self.owner.store)

        assert self.world.chunk_names == referenced_chunks(self.owner.container)
        assert set(self.owner.container.state.segments.evicted) | set(
            self.owner.container.state.segments.by_id
        ) == {(await self.owner.store.segment_info(name)).segment_id for name in self.model.segments}
        await self.owner.stop()

    _troubles: ClassVar[dict[str, Callable[..., Awaitable[None]]]] = {
        "flush": flush,
        "wait": wait,
        "checkpoint": checkpoint,
        "reopen": reopen,
        "crash": crash,
        "failover": failover,
        "crash in flush": crash_in_flush,
        "faults": faults,
        "no faults": no_faults,
    }


@given(steps=st.lists(verbs | troubles, max_size=25))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_a_container_agrees_with_the_model_through_crashes_and_failovers(
    steps: list[tuple[Any, ...]],
) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            life = Life(ContainerWorld(MODEL_OPTIONS), tasks)
            await life.begin()
            for step in [*STAGE, *steps]:
                await life.step(*step)
                if step[0] in ("crash", "reopen", "failover", "crash in flush"):
                    await compare(life.model, life.owner.store)
            await life.end()

    trio.run(main, clock=MockClock(autojump_threshold=0))


# --- the whole store on a real folder -----------------------------------------------------------

DISK_CONFIG = StoreConfig(writer=WriterConfig(flush_bytes=16 << 10, rolling_size=64 << 10))


@given(steps=st.lists(verbs, max_size=15))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_store_on_disk_agrees_with_the_model_through_reopenings(
    steps: list[tuple[Any, ...]], backend: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")

    async def main() -> None:
        model = Model()
        todo = [*STAGE, *steps, ("reopen",)]
        while todo:
            async with tierlog.open_store(folder, containers=1, config=DISK_CONFIG) as store:
                await compare(model, store)
                while todo and (step := todo.pop(0))[0] != "reopen":
                    await do(model, store, *step)
                await compare(model, store)

    anyio.run(main, backend=backend)
