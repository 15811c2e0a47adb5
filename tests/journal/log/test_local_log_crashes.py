"""A local log after a crash at every I/O call: rules W1 to W5 and W13 on a disk that keeps any part of
what was not synced."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import anyio
import pytest
from simulation.disk import Keep
from simulation.file_layer import Fault, Hang, SimulatedDisk, SimulatedFiles

from support.log_world import Ledger, live, make_log, power_loss_at, scripted_life, takeover
from tierlog.actors.kernel.exits import first_leaf
from tierlog.journal.log import frames, local_history, local_rolling, local_writer
from tierlog.journal.log.frames import FileId
from tierlog.storage_backends.base.errors import DataCorruption
from tierlog.storage_backends.base.files import IoCall, Program, Rename, Sync

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


async def count_calls() -> int:
    ledger = Ledger()
    return await live(SimulatedDisk(Random(0)), lambda files: scripted_life(files, ledger))


async def crash_and_take_over(index: int, keep: Keep, seed: int) -> None:
    """Power loss at call ``index``, a second owner that loses power too, and a third that must read it
    all."""
    random = Random(seed * 10_000 + index)
    ledger = Ledger()
    disk = SimulatedDisk(random)
    await live(disk, lambda files: scripted_life(files, ledger), power_loss_at(index, random))
    disk = disk.crash(keep)
    await live(disk, lambda files: takeover(files, ledger), power_loss_at(random.randrange(45), random))
    disk = disk.crash(keep)
    await live(disk, lambda files: takeover(files, ledger))
    disk = disk.crash("none")
    await live(disk, lambda files: takeover(files, ledger))


@pytest.mark.parametrize(
    "keep, seeds",
    [("none", 1), ("all", 1), ("random", 1), pytest.param("random", 4, marks=pytest.mark.extended)],
)
async def test_a_power_loss_at_any_call_loses_no_acked_group(keep: Keep, seeds: int) -> None:
    """W1 to W5, W13: also when the next owner loses power at any call of its own."""
    for index in range(await count_calls()):
        for seed in range(seeds):
            await crash_and_take_over(index, keep, seed)


async def test_and_38_a_process_killed_at_any_call_then_a_power_loss() -> None:
    """The next owner reads the page cache, acts on it, and only then the power goes: what it read must still
    be there (W4)."""
    for index in range(await count_calls()):
        for keep in ("none", "random"):
            random = Random(index)
            ledger = Ledger()
            disk = SimulatedDisk(random)
            await kill_at(disk, index, ledger)
            await live(disk, lambda files, ledger=ledger: takeover(files, ledger))  # type: ignore[misc]
            disk = disk.crash(keep)
            await live(disk, lambda files, ledger=ledger: takeover(files, ledger))  # type: ignore[misc]


def name_before_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of a file that is written over is not durable when the file gets its name."""
    begin = local_rolling._begin_spare

    def without_sync(*args: Any) -> Program[Any]:
        program, result = begin(*args), None
        try:
            while True:
                call = program.send(result)
                result = None if isinstance(call, Sync) else (yield call)
        except StopIteration as stop:
            return stop.value

    monkeypatch.setattr(local_rolling, "_begin_spare", without_sync)


def frames_of_any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame's CRCs do not depend on the sequence of its file."""
    for module in (local_rolling, local_writer, local_history):
        monkeypatch.setattr(
            module, "file_salt", lambda log_id, file: frames.file_salt(log_id, FileId(file.epoch, 1))
        )


@pytest.mark.parametrize("plant", [name_before_sync, frames_of_any_file])
async def test_w13_the_crashes_above_notice_a_file_that_is_written_over_carelessly(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    noticed: BaseException | None = None
    for index in range(await count_calls()):
        try:
            await crash_and_take_over(index, "none", 0)
        except Exception as error:  # noqa: BLE001 - a promise that was broken, or a log that is refused
            noticed = first_leaf(error)
            break

    assert isinstance(noticed, (AssertionError, DataCorruption))


async def kill_at(disk: SimulatedDisk, index: int, ledger: Ledger) -> None:
    """SIGKILL before call ``index``: the page cache stays, nothing of the process runs on."""
    hung = anyio.Event()

    def on_call(now: int, call: IoCall) -> Fault | None:
        if now < index:
            return None
        hung.set()
        return Hang()

    files = SimulatedFiles(disk, on_call)

    async def run() -> None:
        await scripted_life(files, ledger)
        hung.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await hung.wait()
        files.kill()
        tasks.cancel_scope.cancel()


async def test_the_scripted_life_reaches_what_it_should() -> None:
    """The workload above would prove little if it never rolled, truncated or re-logged."""
    disk = SimulatedDisk(Random(0))
    seen: list[str] = []
    recycled = []

    def on_call(index: int, call: IoCall) -> None:
        seen.append(type(call).__name__)
        if isinstance(call, Rename) and call.target.endswith(".wal"):
            recycled.append(call.source)

    ledger = Ledger()
    await live(disk, lambda files: scripted_life(files, ledger), on_call)

    assert seen.count("Unlink") >= 4
    assert len(recycled) == 1
    assert seen.count("Sync") >= 15
    assert sum(path.endswith(".wal") for path in disk.folder("/data/wal/0000").names) >= 1
    assert sorted(ledger.acked) == list(range(1, 17))


async def test_the_same_seed_gives_the_same_disk() -> None:
    """The base of deterministic simulation."""

    async def image(seed: int) -> dict[str, bytes]:
        random = Random(seed)
        ledger = Ledger()
        disk = SimulatedDisk(random)
        await live(disk, lambda files: scripted_life(files, ledger), power_loss_at(60, random))
        disk = disk.crash()
        names = disk.folder("/data/wal/0000").names
        return {name: disk.content(f"/data/wal/0000/{name}") for name in names}

    assert await image(5) == await image(5)


async def test_an_owner_after_a_clean_close_reads_everything() -> None:
    disk = SimulatedDisk(Random(0))
    ledger = Ledger()
    await live(disk, lambda files: scripted_life(files, ledger))
    log = make_log(SimulatedFiles(disk.crash("none")))
    await log.open()
    await log.close()
