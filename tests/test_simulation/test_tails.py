"""A tail that waits is woken by everything that concerns it; one that is not woken is noticed,
whatever was withheld."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from random import Random

import anyio
import pytest
from simulation.faults import Fault, Kind, Target
from simulation.loop import run_virtual
from simulation.model import ReturnedBlock, Segment, State
from simulation.model_calls import NextBlock
from simulation.settings import SiteKind
from simulation.tails import TAIL_SECONDS, NoBlock, await_block
from simulation.trace import Trace
from simulation.world import Process, Site

from tierlog.actors.container.segments import SegmentState
from tierlog.storage_backends.base.errors import OutcomeUnknown, SegmentNotFound

NAME = "log/a"
Meanwhile = Callable[[Site], Awaitable[object]]


def wait_at_the_end(meanwhile: Meanwhile) -> bytes | NoBlock:
    """What a tail at the end of ``abc`` returns, if ``meanwhile`` happens while it waits."""
    blocks: list[bytes | NoBlock] = []

    async def body() -> None:
        site = Site(SiteKind(), Random("tails"), Trace())
        async with anyio.create_task_group() as tasks:
            try:
                process = await site.start(tasks)
                await process.store.create_segment(NAME)
                await process.store.append(NAME, b"abc")
                blocks.append(await wait(site, process, meanwhile))
            finally:
                site.kill_all()

    run_virtual(body, 0)
    return blocks[0]


async def wait(site: Site, process: Process, meanwhile: Meanwhile) -> bytes | NoBlock:
    async def act() -> None:
        await anyio.sleep(TAIL_SECONDS / 4)
        await meanwhile(site)

    block: bytes | NoBlock = b"gone"
    async with anyio.create_task_group() as tasks, aclosing(process.store.tail(NAME, 3)) as blocks:
        tasks.start_soon(act)
        with suppress(SegmentNotFound):
            block = await process.call(
                lambda store: await_block(process.gate, NextBlock(NAME, 3, 100), blocks, store)
            )
    return block


async def nothing(site: Site) -> None:
    pass


async def seal(site: Site) -> None:
    await site.processes[0].store.seal_segment(NAME)


async def append(site: Site) -> None:
    await site.processes[0].store.append(NAME, b"def")


async def merge(site: Site) -> None:
    await site.processes[0].store.create_segment(f"{NAME}#1")
    await site.processes[0].store.append(f"{NAME}#1", b"def")
    await site.processes[0].store.seal_segment(f"{NAME}#1")
    await site.processes[0].store.merge_segments(NAME, [f"{NAME}#1"])


async def delete(site: Site) -> None:
    await site.processes[0].store.delete_segment(NAME)


@pytest.mark.parametrize(
    ("meanwhile", "block"),
    [(nothing, NoBlock()), (append, b"def"), (merge, b"def"), (seal, b""), (delete, b"gone")],
    ids=lambda value: str(value)[:20],
)
def test_a_tail_returns_what_there_is(meanwhile: Meanwhile, block: bytes | NoBlock) -> None:
    assert wait_at_the_end(meanwhile) == block


@pytest.mark.parametrize(
    ("meanwhile", "withheld"),
    [(append, "bytes to 6"), (merge, "bytes to 6"), (seal, "is sealed"), (delete, "is gone")],
)
def test_what_is_withheld_is_noticed(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile, withheld: str
) -> None:
    monkeypatch.setattr(SegmentState, "wake", lambda self: None)
    block = wait_at_the_end(meanwhile)
    assert isinstance(block, NoBlock)
    assert withheld in block.withheld


def test_a_tail_that_is_left_in_a_stopped_container_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(site: Site) -> None:
        monkeypatch.setattr(SegmentState, "wake", lambda self: None)
        site.faults.add(Fault(Target.FILES, Kind.BEFORE, verbs=("Sync",), part=".wal"))
        with pytest.raises(OutcomeUnknown):
            await site.processes[0].store.append(NAME, b"x")

    block = wait_at_the_end(fail)
    assert isinstance(block, NoBlock)
    assert "has stopped" in block.withheld


def test_a_frozen_process_withholds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def seal_and_freeze(site: Site) -> None:
        process = site.processes[0]
        await seal(site)
        process.freeze()
        await anyio.sleep(2 * TAIL_SECONDS)
        process.resume()

    monkeypatch.setattr(SegmentState, "wake", lambda self: None)
    assert wait_at_the_end(seal_and_freeze) == NoBlock()


def test_a_tail_ends_only_where_no_bytes_will_come() -> None:
    def outcome(life: Segment) -> object:
        return NextBlock("f", 3, 2).apply(State((("f", life),)))[1]

    going_on, sealed, longer = (
        outcome(Segment(b"abc")),
        outcome(Segment(b"abc", sealed=True)),
        outcome(Segment(b"abcdef", sealed=True)),
    )
    assert isinstance(going_on, ReturnedBlock)
    assert not going_on.accepts(b"")
    assert isinstance(sealed, ReturnedBlock)
    assert sealed.accepts(b"")
    assert isinstance(longer, ReturnedBlock)
    assert [longer.accepts(given) for given in (b"de", b"d", b"", b"def")] == [True, True, False, False]
