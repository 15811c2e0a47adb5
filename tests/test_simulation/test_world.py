"""Whole stores at a simulated site: they live through kills, freezes and power losses, and nothing gets out
of a dead process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import product
from random import Random

import anyio
import anyio.abc
import pytest
from simulation.faults import Fault, Kind, Nth, Target
from simulation.loop import Deadlock, after_steps, run_virtual
from simulation.settings import ChunksKind, SiteKind, WalKind
from simulation.trace import Trace
from simulation.world import Process, ProcessDied, Site

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import (
    NotOwner,
    OutcomeUnknown,
    Throttled,
    TierlogError,
    Unavailable,
)

KINDS = [
    SiteKind(wal, chunks, containers=2)
    for wal, chunks in product(WalKind, ChunksKind)
    if wal is not WalKind.BUCKET or chunks is ChunksKind.OBJECTS
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=[f"{kind.wal}-{kind.chunks}" for kind in KINDS])
NAME = "log/a"
Story = Callable[[Site, anyio.abc.TaskGroup], Awaitable[None]]


def play(story: Story, kind: SiteKind, seed: int = 0) -> Trace:
    """Run ``story`` at a fresh site; processes that still run at its end are killed."""
    trace = Trace(everything=True)

    async def body() -> None:
        site = Site(kind, Random(f"site {seed}"), trace)
        async with anyio.create_task_group() as tasks:
            try:
                await story(site, tasks)
            finally:
                site.kill_all()

    try:
        run_virtual(body, seed)
    except ExceptionGroup as error:
        raise (error.exceptions[0] if len(error.exceptions) == 1 else error) from None
    return trace


async def append(process: Process, data: bytes) -> None:
    while True:
        try:
            await process.call(lambda store: store.append(NAME, data))
            return
        except Throttled:
            await anyio.sleep(0.1)


async def content(process: Process) -> bytes:
    async def read(store: SegmentStore) -> bytes:
        data = b""
        while block := await store.read(NAME, len(data), 1 << 16):
            data += block
        return data

    return await process.call(read)


def block(number: int, size: int = 100) -> bytes:
    return (b"%03d " % number * size)[:size]


async def write(process: Process, numbers: range) -> bytes:
    for number in numbers:
        await append(process, block(number))
    return b"".join(map(block, numbers))


async def created(site: Site, tasks: anyio.abc.TaskGroup) -> Process:
    process = await site.start(tasks)
    await process.call(lambda store: store.create_segment(NAME))
    return process


# --- lives --------------------------------------------------------------------------------------


async def _create(name: str, store: SegmentStore) -> None:
    await store.create_segment(name)


@every_kind
def test_small_limits_make_a_short_run_meet_everything(kind: SiteKind) -> None:
    async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
        process = await created(site, tasks)
        for number in range(1, 6):
            await process.call(partial(_create, f"{NAME}#{number}"))
        await write(process, range(150))
        await process.call(lambda store: store.truncate_segment(NAME, 12_000))
        await process.call(lambda store: store.flush())
        await anyio.sleep(10)
        statistics = next(
            each.statistics() for each in process.containers() if each.state.segments.find(NAME)
        )
        assert statistics.checkpoints.checkpoints > 1
        assert statistics.log.retained_bytes < statistics.log.appended_bytes
        assert statistics.writer.cycles > 5
        assert statistics.collector.deleted > 0
        assert statistics.active_segments < 6

    play(story, kind)


@every_kind
def test_idle_means_quiet(kind: SiteKind) -> None:
    async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
        process = await created(site, tasks)
        await write(process, range(30))
        await anyio.sleep(60)
        before = site.calls
        await anyio.sleep(3600)
        assert site.calls == before

    play(story, kind)


# --- ends ---------------------------------------------------------------------------------------


def _effects(trace: Trace, process: Process) -> list[str]:
    files = ("Write", "Sync", "Open", "Link", "Unlink", "Rename", "Allocate", "MakeFolder")
    verbs = (*files, "log ", "chunk ", "object ")
    mine = (line.split(" ", 2) for line in trace.lines)
    return [text for _, source, text in mine if source == process.gate.name and text.startswith(verbs)]


@every_kind
@pytest.mark.parametrize("steps", [1, 9, 40, 111, 260, 700])
def test_a_kill_at_any_await_leaves_no_later_effect(kind: SiteKind, steps: int) -> None:
    """Everything of the process hangs first, then it is cancelled: no ``finally`` reaches the disk, the log
    or the chunks."""
    after: list[int] = []
    struck: list[float] = []

    async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
        process = await created(site, tasks)
        disk = site.disk
        marks: list[tuple[int, list[bytes], list[bytes]]] = []

        def state() -> tuple[int, list[bytes], list[bytes]]:
            files = [disk.content(path) for path in disk.files_below("/")]
            return len(_effects(site.trace, process)), files, list(site.chunk_contents().values())

        def strike() -> None:
            process.kill()
            marks.append(state())
            struck.append(anyio.current_time())

        after_steps(steps, strike)
        with pytest.raises(ProcessDied):
            for number in range(400):
                await append(process, block(number))
                if number % 7 == 0:
                    await process.call(lambda store: store.flush())
        await anyio.sleep(100)
        assert process.ended.is_set()
        assert [state()] == marks
        after.append(marks[0][0])

    play(story, kind)
    assert after
    assert struck


def test_steps_strike_at_different_awaits() -> None:
    def effects_before(steps: int) -> int:
        counts: list[int] = []

        async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
            process = await created(site, tasks)

            def strike() -> None:
                # Now: what the killed process still tries to call is counted too, and has no effect.
                counts.append(site.calls)
                process.kill()

            after_steps(steps, strike)
            with pytest.raises(ProcessDied):
                await write(process, range(1000))

        play(story, SiteKind())
        return counts[0]

    counts = [effects_before(steps) for steps in range(1, 60)]
    assert counts == sorted(counts)
    assert len(set(counts)) > 25


@pytest.mark.parametrize("steps", [3, 10, 25, 60, 100])
@every_kind
def test_a_start_can_be_killed_too(kind: SiteKind, steps: int) -> None:
    async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
        acked = await write(await created(site, tasks), range(20))
        site.processes[0].kill()
        after_steps(steps, partial(_kill_number, site, 2))
        try:
            second = await site.start(tasks)
            with pytest.raises(ProcessDied):
                await write(second, range(500, 900))
        except ProcessDied:
            pass
        third = await site.start(tasks)
        assert (await content(third))[: len(acked)] == acked

    play(story, kind)


def _kill_number(site: Site, number: int) -> None:
    site.processes[number - 1].kill()


# --- zombies ------------------------------------------------------------------------------------


@every_kind
def test_a_resumed_zombie_continues_and_is_fenced(kind: SiteKind) -> None:
    late = [zombie(kind, steps) for steps in (1, 6, 12, 25, 50, 90, 200, 300)]
    assert sum(late) > 0  # some came to change files, log or chunks behind their successor's back


def zombie(kind: SiteKind, steps: int) -> int:
    """An owner that is frozen after ``steps`` and resumed behind its successor; returns how many effects it
    still had."""
    late: list[int] = []

    async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
        first = await created(site, tasks)
        acked: list[bytes] = []
        fenced: list[BaseException] = []

        async def client() -> None:
            try:
                for number in range(1000):
                    await append(first, block(number))
                    acked.append(block(number))
                    if number % 5 == 0:
                        await first.call(lambda store: store.flush())
            except (NotOwner, OutcomeUnknown, Unavailable) as error:
                fenced.append(error)

        after_steps(steps, first.freeze)
        tasks.start_soon(client)
        await anyio.sleep(0.5)
        assert first.frozen
        second = await site.start(tasks)
        begun = await content(second)
        own = await write(second, range(900, 940))
        await second.call(lambda store: store.flush())

        before = len(_effects(site.trace, first))
        first.resume()
        await anyio.sleep(60)
        assert fenced
        assert b"".join(acked) == begun[: len(b"".join(acked))]
        assert await content(second) == begun + own
        with pytest.raises(NotOwner):
            await append(first, b"late")
        assert first.alive
        late.append(len(_effects(site.trace, first)) - before)

    play(story, kind)
    return late[0]


def test_nothing_leaves_a_frozen_process() -> None:
    async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
        process = await created(site, tasks)
        answers: list[bytes] = []

        async def client() -> None:
            await append(process, b"x")
            answers.append(await content(process))

        process.freeze()
        tasks.start_soon(client)
        await anyio.sleep(1000)
        frozen_at = site.calls
        await anyio.sleep(1000)
        assert (answers, site.calls) == ([], frozen_at)
        process.resume()
        await anyio.sleep(1)
        assert answers == [b"x"]

    for kind in KINDS:
        play(story, kind)


def test_a_process_frozen_in_the_registers_lock_blocks_the_next_owner_until_it_dies() -> None:
    async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
        await (await created(site, tasks)).stop()
        site.faults.add(Fault(Target.FILES, Kind.FREEZE, Nth(), verbs=("Write",), part="/0000/register"))
        tasks.start_soon(_start_and_die, site, tasks)
        await anyio.sleep(1)
        holder = site.processes[1]
        assert holder.frozen
        assert not holder.opened.is_set()
        started = anyio.current_time()
        tasks.start_soon(_kill_later, holder)
        third = await site.start(tasks)
        assert anyio.current_time() >= started + 30
        assert await content(third) == b""

    play(story, SiteKind())


async def _start_and_die(site: Site, tasks: anyio.abc.TaskGroup) -> None:
    with pytest.raises(ProcessDied):
        await site.start(tasks)


async def _kill_later(process: Process) -> None:
    await anyio.sleep(30)
    process.kill()


def test_an_opener_that_waits_for_a_lock_for_ever_is_a_deadlock_with_names() -> None:
    async def body() -> None:
        site = Site(SiteKind(), Random(1), Trace())
        async with anyio.create_task_group() as tasks:
            await (await created(site, tasks)).stop()
            site.faults.add(Fault(Target.FILES, Kind.FREEZE, Nth(), verbs=("Write",), part="/0000/register"))
            await site.start(tasks)

    with pytest.raises(
        Deadlock, match=r"(?s)these tasks wait:.*stay \(gates\.py:\d+\) < _resume.*open \(local\.py"
    ):
        run_virtual(body, 0, limit=1000)


# --- the rest -----------------------------------------------------------------------------------


def test_a_failed_start_gives_its_reason() -> None:
    async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
        await (await created(site, tasks)).stop()
        register = "/data/wal/0000/register"
        site.damage.flip_file(register, 99)
        with pytest.raises(TierlogError, match="register"):
            await site.start(tasks)
        assert site.processes[1].ended.is_set()

    play(story, SiteKind())


def test_a_jump_of_the_wall_clock_moves_nothing_else() -> None:
    def lines(jump: float) -> list[str]:
        async def story(site: Site, tasks: anyio.abc.TaskGroup) -> None:
            process = await created(site, tasks)
            process.jump_clock(jump)
            await write(process, range(40))
            await anyio.sleep(20)

        return [line for line in play(story, SiteKind()).lines if "clock" not in line]

    assert lines(-1e6) == lines(1e9)
