"""A frozen owner that wakes up behind its successor: nothing acked by either is lost, and the zombie destroys
nothing.

Two processes share one simulated disk. The first is frozen at an I/O call; the second opens the store,
checks, works and flushes; then the first resumes and goes on as if nothing had happened, until it notices.
With ``--long`` every call of the first owner's life is tried as the moment of the freeze. Of the calls that
the tests below group by what the owner was doing, the default run tries every third or, of the many,
every sixth, and ``-m extended`` every third.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from random import Random

import anyio
import attrs
import pytest
from simulation.file_layer import SimulatedDisk, SimulatedFiles
from simulation.model_calls import Append

from support.crash_scripts import LIFE, Flush, Session, create, play
from support.crash_world import Freezer, check_chunks, describe, opened
from support.oracle import Oracle, observe
from support.virtual import run_virtual
from tierlog.storage_backends.base.errors import NotOwner, OutcomeUnknown, TierlogError
from tierlog.storage_backends.base.files import IoCall

pytestmark = pytest.mark.timeout(300)
sampled = pytest.mark.parametrize("step", [6, pytest.param(3, marks=pytest.mark.extended)])
"""Every so many-th call."""

SESSION = LIFE[0]
NAMES = ("log/a", "log/b", "txn/t", "txn/t#1", "txn/t#2", "race/r", "next/n")
WRITERS = dict.fromkeys(NAMES, tuple("vwxyz"))


@attrs.define
class FirstOwner:
    """Plays its session until it ends or finds itself fenced."""

    files: SimulatedFiles
    oracle: Oracle = attrs.field(factory=Oracle)
    fenced: bool = False
    ended: anyio.Event = attrs.field(factory=anyio.Event)

    async def live(self, session: Session) -> None:
        try:
            async with opened(self.files, 1) as store:
                await play(session, self.oracle, store)
        except* TierlogError:
            self.fenced = True
        self.ended.set()


async def fight(at: int) -> list[str]:
    """The whole story, with the freeze at call ``at``; returns the first owner's calls."""
    disk = SimulatedDisk(Random(at))
    calls = list[str]()

    def wanted(index: int, call: IoCall) -> bool:
        calls.append(describe(call))
        return index >= at

    freezer = Freezer(wanted)
    first = FirstOwner(SimulatedFiles(disk, freezer))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.live, SESSION)
        tasks.start_soon(_freeze_at_the_end, first, freezer)
        await freezer.frozen.wait()
        oracle = await succeed(disk, first, freezer)

    async with opened(SimulatedFiles(disk), 3) as store:
        oracle.check(await observe(store, WRITERS))
        await store.flush()
        await check_chunks(store, disk)
    return calls


async def _freeze_at_the_end(first: FirstOwner, freezer: Freezer) -> None:
    await first.ended.wait()
    freezer.frozen.set()


async def succeed(disk: SimulatedDisk, first: FirstOwner, freezer: Freezer) -> Oracle:
    """The second owner's life, in the middle of which the first one resumes; returns what must be true
    afterwards."""
    async with opened(SimulatedFiles(disk), 2) as store:
        view = await observe(store, WRITERS)
        oracle = first.oracle.after_crash()
        oracle.check(view)
        await oracle.repeat_latest(store)
        for op in (
            create("next/n"),
            Append("next/n", (b"next" * 100,), "w", 1),
            Flush(),
            Append("next/n", (b"more" * 300,), "w", 2),
        ):
            await oracle.call(store, "next/", op)

        freezer.resume.set()
        await first.ended.wait()
        # Whatever the first owner acked, before the freeze or after it, was there when the second one
        # began.
        first.oracle.check(view)
        oracle.check(await observe(store, WRITERS))
        await oracle.call(store, "next/", Append("next/n", (b"end",), "w", 3))
        await store.flush()
    return oracle


@lru_cache(maxsize=1)
def calls_of_the_first_owner() -> list[str]:
    return run_virtual(partial(fight, 1 << 30), 0)


def freeze_where(wanted: Callable[[str, str], bool], step: int) -> int:
    """Freeze the first owner at every ``step``-th call for which ``wanted(call, the one before)``;
    returns how many there were."""
    names = calls_of_the_first_owner()
    # Before it has raised the register it owns nothing: resumed, it would simply be the next owner. The lock
    # of a new register ends with its draft.
    owner = next(index for index, name in enumerate(names) if name.startswith("Close") and "register" in name)
    found = [index for index in range(owner + 1, len(names)) if wanted(names[index], names[index - 1])]
    for at in found[::step]:
        try:
            run_virtual(partial(fight, at), 0)
        except BaseException as error:
            error.add_note(f"the first owner was frozen before its call {at}: {names[at]}")
            raise
    return len(found)


@sampled
def test_an_owner_frozen_between_sync_and_register_check_acks_nothing_that_its_successor_lacks(
    step: int,
) -> None:
    assert (
        freeze_where(
            lambda call, before: (
                call.endswith("/register") and before.startswith("Sync ") and before.endswith(".wal")
            ),
            step,
        )
        > 15
    )


def test_an_owner_frozen_before_it_unlinks_log_files_destroys_nothing() -> None:
    """Between the durable checkpoint and the end of the truncation."""
    assert (
        freeze_where(
            lambda call, _: (
                (call.startswith("Unlink") and ".wal" in call) or call == "ListFolder /data/wal/0000"
            ),
            3,
        )
        > 3
    )


def test_an_owner_frozen_before_it_deletes_a_chunk_deletes_nothing_live() -> None:
    assert (
        freeze_where(
            lambda call, _: call.startswith(("Unlink", "SyncFolder")) and "/lts/containers/" in call, 3
        )
        > 3
    )


@sampled
def test_an_owner_frozen_inside_a_flush_leaves_only_garbage(step: int) -> None:
    assert (
        freeze_where(lambda call, _: call.startswith(("Write", "Link", "Sync ")) and "/lts/" in call, step)
        > 10
    )


@sampled
def test_an_owner_frozen_while_it_opens_or_rolls_its_log_has_no_effect(step: int) -> None:
    starts = ("Open", "Write", "Sync", "SyncFolder", "Lock")
    assert (
        freeze_where(
            lambda call, before: (
                call.startswith(starts) and ("/register" in call or before.startswith("Allocate"))
            ),
            step,
        )
        > 10
    )


@pytest.mark.long
def test_an_owner_frozen_at_any_call() -> None:
    assert freeze_where(lambda call, before: True, step=1) > 250


def test_a_fenced_owner_reports_it() -> None:
    """At the latest with the second call after it resumes; the first one may have been in doubt."""

    async def story() -> list[str]:
        disk, said = SimulatedDisk(Random(0)), list[str]()
        async with opened(SimulatedFiles(disk), 1) as first:
            await first.create_segment("log/a")
            async with opened(SimulatedFiles(disk), 2) as second:
                for _ in range(3):
                    with pytest.raises((NotOwner, OutcomeUnknown)) as caught:
                        await first.append("log/a", b"late")
                    said.append(type(caught.value).__name__)
                with pytest.raises(NotOwner):
                    await first.read("log/a", 0, 1)
                assert await second.read("log/a", 0, 100) == b""
        return said

    assert run_virtual(story, 0)[1:] == ["NotOwner", "NotOwner"]
