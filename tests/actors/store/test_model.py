"""Random calls, flushes, checkpoints, crashes, failovers and faults of long-term storage: a store agrees with
the simulator's model.

Guards C1, C3, F3, F4, G1 and T1 to T9: what an owner acked every later owner returns, and in the end
long-term storage holds the referenced chunks and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import anyio
import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from simulation.loop import Rounds, run_virtual
from simulation.model import TRANSACTION_IDS, State
from simulation.model_calls import Append, Create, Op, Truncate
from simulation.model_transactions import Abort
from simulation.view import View, difference, observe, shows

import tierlog
from support.container_world import OPTIONS, ContainerWorld, Owner, referenced_chunks
from support.live_segments import live_ids
from support.random_calls import NAMES, TARGETS, WRITERS, random_call, random_transaction_call
from tierlog import SegmentStore, StoreConfig
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.actors.settings.configuration import WriterConfig
from tierlog.storage_backends.base.errors import NotOwner, OutcomeUnknown, TierlogError
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

CALLS = ["call"] * 6 + ["transaction call"] * 4
FIRST = (Create("f"), Create("f#1"), Append("f", (b"base",)), Append("f#1", (b"part",)))
ROUNDS = Rounds(at_one_time=20_000, in_all=2_000_000)
"""A store that is busy without end is reported at once, with the tasks that are."""


def in_all_sizes(op: Op, random: Random) -> Op:
    """Some appends are larger than a chunk; truncations reach into them."""
    size = random.randrange(1, 90_000)
    if isinstance(op, Append) and random.random() < 0.25:
        return attrs.evolve(op, events=(bytes((size % 251,)) * size, *op.events[1:]))
    if isinstance(op, Truncate) and random.random() < 0.5:
        return attrs.evolve(op, offset=size)
    return op


@attrs.define
class Expected:
    """What the model expects of a store, call by call."""

    random: Random
    state: State = attrs.field(factory=State)
    number: int = 0

    async def begin(self, store: SegmentStore) -> None:
        for op in FIRST:
            await self.check(op, store)

    async def call(self, kind: str, store: SegmentStore) -> None:
        """Some calls of one kind."""
        for _ in range(self.random.randint(1, 3)):
            self.number += 1
            if kind == "call":
                op = random_call(self.random, self.number)
            else:
                op = random_transaction_call(self.random, self.state, self.number)
            await self.check(in_all_sizes(op, self.random), store)

    async def check(self, op: Op, store: SegmentStore) -> None:
        self.state, outcome = op.apply(self.state)
        answer: object
        try:
            answer = await op.send(store)
        except TierlogError as error:
            answer = error
        assert outcome.accepts(answer), f"{op} returned {answer!r}, not {outcome}"

    async def compare(self, store: SegmentStore) -> View:
        view = await observe(store, "f", dict.fromkeys(NAMES, WRITERS), TARGETS)
        assert shows(self.state, view), difference(self.state, view)
        return view


# --- one container on memory, with every kind of failure ----------------------------------------

FAILURES = [
    "flush",
    "wait",
    "checkpoint",
    "reopen",
    "crash",
    "failover",
    "crash_in_flush",
    "inject_faults",
    "clear_faults",
]
MODEL_OPTIONS = replace(
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

    def __init__(self, world: ContainerWorld, tasks: anyio.abc.TaskGroup, seed: int) -> None:
        self.world = world
        self.expected = Expected(Random(seed))
        self._tasks = tasks
        self._waits = 4  # leases and tombstones outlive them
        self.owner: Owner

    async def begin(self) -> None:
        while True:
            try:
                self.owner = await self.world.start(self._tasks)
            except OutcomeUnknown:
                continue  # its supervisor starts it again

            return

    async def step(self, step: str) -> None:
        if step in CALLS:
            await self.expected.call(step, self.owner.store)
            return

        await getattr(self, step)()
        if step in ("reopen", "crash", "failover", "crash_in_flush"):
            await self.expected.compare(self.owner.store)

    async def flush(self) -> None:
        if self.world.chunks.script is None:
            await self.owner.store.flush()
            return

        try:
            await self.owner.store.flush()
        except TierlogError:
            assert not self.owner.ended.is_set()

    async def wait(self) -> None:
        if self._waits:
            self._waits -= 1
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

    async def crash_in_flush(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def flush() -> None:
                try:
                    await self.owner.store.flush()
                except TierlogError:
                    return

            tasks.start_soon(flush)
            for _ in range(self.expected.random.randint(1, 40)):
                await anyio.lowlevel.checkpoint()
            await self.owner.crash()
        await self.begin()

    async def inject_faults(self) -> None:
        self.world.chunks.script = random_faults(self.expected.random.getrandbits(32))

    async def clear_faults(self) -> None:
        self.world.chunks.script = None

    async def end(self) -> None:
        """Once all is quiet, nothing was lost, nothing leaked."""
        await self.clear_faults()
        await self.reopen()
        for target in TARGETS:
            for transaction in TRANSACTION_IDS:
                await self.expected.check(Abort(target, transaction, ""), self.owner.store)
        await self.expected.compare(self.owner.store)
        await self.owner.store.flush()
        await anyio.sleep(500)
        view = await self.expected.compare(self.owner.store)

        assert self.world.chunk_names == referenced_chunks(self.owner.container)
        in_memory = self.owner.container.state.segments.by_id.keys()
        sids = {shown.segment_id for shown in view.values()}
        assert set(live_ids(self.owner.container).values()) == sids
        assert in_memory <= sids
        await self.owner.stop()


def live(steps: list[str], seed: int) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            life = Life(ContainerWorld(MODEL_OPTIONS), tasks, seed)
            await life.begin()
            await life.expected.begin(life.owner.store)
            for step in steps:
                await life.step(step)
            await life.end()

    run_virtual(main, seed, rounds=ROUNDS)


@given(steps=st.lists(st.sampled_from(CALLS + FAILURES), max_size=40), seed=st.integers(0, 1 << 32))
@settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow])
def test_a_container_agrees_with_the_model_through_crashes_and_failovers(steps: list[str], seed: int) -> None:
    live(steps, seed)


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(10, 40))]
)
def test_a_container_agrees_with_the_model_over_many_calls(seed: int) -> None:
    live(Random(seed).choices(CALLS * 10 + FAILURES, k=200), seed)


# --- the whole store on a real folder -----------------------------------------------------------

DISK_CONFIG = StoreConfig(writer=WriterConfig(flush_bytes=16 << 10, rolling_size=64 << 10))


@given(
    sessions=st.lists(st.lists(st.sampled_from([*CALLS, "flush"]), max_size=8), max_size=3),
    seed=st.integers(0, 1 << 32),
)
@settings(
    max_examples=settings().max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_store_on_disk_agrees_with_the_model_through_reopenings(
    sessions: list[list[str]], seed: int, backend: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")

    async def main() -> None:
        expected = Expected(Random(seed))
        async with tierlog.open_store(folder, containers=1, config=DISK_CONFIG) as store:
            await expected.begin(store)
        for session in [*sessions, []]:
            async with tierlog.open_store(folder, config=DISK_CONFIG) as store:
                await expected.compare(store)
                for step in session:
                    await (store.flush() if step == "flush" else expected.call(step, store))
                await expected.compare(store)

    anyio.run(main, backend=backend)
