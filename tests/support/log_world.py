"""A scripted life of a local log on a simulated disk, and what must be true after any crash in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import anyio
import attrs
from simulation.file_layer import Fault, LosePower, OnCall, SimulatedDisk, SimulatedFiles

from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.storage_backends.base.files import IoCall
from tierlog.testing.log_conformance import contents

LOG_ID = b"0123456789abcdef"
FOLDER = "/data/wal/0000"
OPTIONS = LocalLogOptions(file_size=1500, reserve=4096, allocation_step=4096, length_step=300, low_water=0)
LONG_FILES = attrs.evolve(OPTIONS, file_size=9000)
"""Of several pages: in a file that is written over, there is something left of its earlier life."""


@attrs.define
class Ledger:
    """The acks of clients, and everything that was tried."""

    acked: dict[int, bytes] = attrs.field(factory=dict)
    tried: dict[int, list[bytes]] = attrs.field(factory=dict)
    truncations: list[int] = attrs.field(factory=list)
    """Addresses that were tried; each acked or unknown."""

    async def append(self, log: LocalLog, payload: bytes, truncate_before: int = 0) -> None:
        self.tried.setdefault(log.next_group, []).append(payload)
        if truncate_before:
            self.truncations.append(truncate_before)
        number = await log.append([payload], truncate_before=truncate_before)
        self.acked[number] = payload

    def check(self, found: dict[int, bytes]) -> None:
        """The promise: every acked group is there, nothing else than what was tried, in order, without
        gaps."""
        numbers = list(found)
        low = numbers[0] if numbers else 1
        assert numbers == list(range(low, low + len(numbers)))
        assert low in (1, *self.truncations)
        missing = [number for number in self.acked if number >= low and number not in found]
        assert not missing, f"acked groups {missing} are gone"
        for number, payload in found.items():
            assert payload == self.acked.get(number, payload)
            assert payload in self.tried[number]

    def note_read(self, found: dict[int, bytes]) -> None:
        """What an owner has read is a fact from there on, acked or not."""
        self.acked.update(found)


def make_log(files: SimulatedFiles, options: LocalLogOptions = OPTIONS) -> LocalLog:
    return LocalLog(files, FOLDER, LOG_ID, options)


async def scripted_life(files: SimulatedFiles, ledger: Ledger) -> None:
    """Open, appends of all sizes, rolls, a checkpoint, truncation, a roll into a file that is written over,
    close, reopen, appends, unclean end."""
    log = make_log(files, LONG_FILES)
    await log.open()
    for size in (10, 5000, 1, 7000, 300):
        await ledger.append(log, bytes([size % 251]) * size)
    await ledger.append(log, b"checkpoint", truncate_before=4)
    await log.truncate()
    await ledger.append(log, b"after" * 1000)
    await ledger.append(log, b"full" * 1000)
    # In a third file, and the two before it are not needed: one becomes the spare.
    await ledger.append(log, b"checkpoint", truncate_before=log.next_group)
    await log.truncate()
    await ledger.append(log, b"roll" * 2300)
    for size in (100, 30, 600):
        await ledger.append(log, b"over" * (size // 4))
    await log.close()

    log = make_log(files)
    await log.open()
    ledger.note_read(await contents(log))
    await ledger.append(log, b"second" * 200)
    await ledger.append(log, b"", truncate_before=log.next_group)
    await ledger.append(log, b"third" * 30)
    await log.truncate()
    await log.close(clean=False)


async def takeover(files: SimulatedFiles, ledger: Ledger) -> None:
    """A next owner: what it reads must hold the promise and is a fact afterwards; then it goes on writing."""
    log = make_log(files)
    await log.open()
    found = await contents(log)
    ledger.check(found)
    ledger.note_read(found)
    await ledger.append(log, b"by the next owner" * 20)
    await log.close(clean=False)


async def live(
    disk: SimulatedDisk, life: Callable[[SimulatedFiles], Awaitable[None]], on_call: OnCall | None = None
) -> int:
    """Run ``life`` as one process until it ends or power is lost; returns how many calls it made. Hangs
    first, then cancels."""
    stopped = anyio.Event()

    def watch(index: int, call: IoCall) -> Fault | None:
        fault = on_call(index, call) if on_call else None
        if isinstance(fault, LosePower):
            stopped.set()
        return fault

    files = SimulatedFiles(disk, watch)

    async def run() -> None:
        await life(files)
        stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await stopped.wait()
        # The task that lost power is in its last call; let it get there.
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return files.calls


def power_loss_at(index: int, random: Random) -> OnCall:
    """Power goes at call ``index``; a write has brought any part of its bytes into the page cache."""

    def on_call(now: int, call: IoCall) -> Fault | None:
        return LosePower(written=random.choice((0, 1, 39, 512, 1 << 20))) if now == index else None

    return on_call


async def open_log(
    disk: SimulatedDisk, on_call: Callable[[int, IoCall], Fault | None] | None = None
) -> LocalLog:
    log = make_log(SimulatedFiles(disk, on_call))
    await log.open()
    return log


async def read_all(disk: SimulatedDisk) -> dict[int, bytes]:
    log = await open_log(disk)
    found = await contents(log)
    await log.close()
    return found
