"""Local logs on real files: two owners that fight over one folder in one process. Two processes, and writers
that are killed: ``tests/recovery``."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.storage_backends.base.errors import NotOwner, StorageFull, Unavailable
from tierlog.storage_backends.base.files import Allocate, Lock, Program, Unlock
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.log_conformance import contents

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

LOG_ID = b"0123456789abcdef"
OPTIONS = LocalLogOptions(file_size=4000, reserve=4096, allocation_step=8192, low_water=0)


T = TypeVar("T")


class InterruptedFiles(LocalFiles):
    """Runs ``intrude`` once, before I/O call ``at``, or the first one after it at which no lock is held."""

    def __init__(self, at: int, intrude: Callable[[], None], *, then_full: bool = False) -> None:
        """``then_full``: the disk has no room for anything more."""
        super().__init__()
        self._at = at
        self._intrude = intrude
        self._then_full = then_full
        self.calls = 0
        self.interrupted = False

    async def run(self, program: Program[T]) -> T:
        return await super().run(self._interrupted(program))

    def lane(self, name: str, width: int = 1, nofollow_root: str = "") -> LocalFiles:
        return self

    def _interrupted(self, program: Program[T]) -> Program[T]:
        answer: Any = None
        error: OSError | None = None
        locked = False
        while True:
            try:
                call = program.send(answer) if error is None else program.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if self.calls >= self._at and not locked and not self.interrupted:
                self.interrupted = True
                self._intrude()
            self.calls += 1
            answer = error = None
            try:
                if self._then_full and self.interrupted and isinstance(call, Allocate):
                    raise OSError(errno.ENOSPC, "full")
                answer = yield call
            except OSError as raised:
                error = raised
            locked = isinstance(call, Lock) or (locked and not isinstance(call, Unlock))


def run_newer_owner(folder: Path) -> None:
    """A newer owner's whole life: it rolls, and removes every file that it no longer needs. The process may
    have an event loop in another thread."""

    async def live() -> None:
        log = LocalLog(LocalFiles(), str(folder), LOG_ID, OPTIONS)
        await log.open()
        for _ in range(2):
            await log.append([b"new" * 2000], truncate_before=log.next_group)
        await log.truncate()
        await log.close()

    anyio.run(live)


async def old_log(folder: Path) -> None:
    for name in (b"a", b"b", b"c"):
        log = LocalLog(LocalFiles(), str(folder), LOG_ID, OPTIONS)
        await log.open()
        for _ in range(4):
            await log.append([name * 700])
        await log.close()


async def read_all(folder: Path) -> dict[int, bytes]:
    log = LocalLog(LocalFiles(), str(folder), LOG_ID, OPTIONS)
    await log.open()
    found = await contents(log)
    await log.close()
    return found


async def test_two_owners_in_one_process_take_the_log_from_each_other(tmp_path: Path) -> None:
    reported: dict[int, bytes] = {}

    async def fight(name: bytes) -> None:
        for _ in range(6):
            log = LocalLog(LocalFiles(), str(tmp_path / "wal"), LOG_ID, OPTIONS)
            try:
                await log.open()
                for index in range(10):
                    payload = b"%s %d" % (name, index) * 50
                    reported[await log.append([payload])] = payload
            except NotOwner:
                continue
            finally:
                await log.close()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fight, b"one")
        tasks.start_soon(fight, b"two")
    found = await read_all(tmp_path / "wal")
    assert len(reported) >= 10
    assert {number: found[number] for number in reported} == reported


@pytest.mark.parametrize("full", [False, True], ids=["", "on-a-full-disk"])
async def test_w1_an_opener_that_a_newer_owner_overtakes_at_any_call_ends_as_fenced(
    tmp_path: Path, full: bool
) -> None:
    await old_log(tmp_path / "log")
    fenced = opened = 0
    for at in range(1000):
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "log", folder)
        files = InterruptedFiles(at, lambda: run_newer_owner(folder), then_full=full)  # noqa: B023
        log = LocalLog(files, str(folder), LOG_ID, OPTIONS)
        try:
            await log.open()
            opened += 1
        except NotOwner:
            fenced += 1
        except StorageFull:
            assert full
            opened += 1  # so far: nobody has fenced it
        await log.close()
        shutil.rmtree(folder)
        if not files.interrupted:
            break
    else:
        pytest.fail("the opening has no end")

    # Until the register is raised, the newer owner is only the one before.
    assert fenced > 10 < opened


@pytest.mark.parametrize("inspected", [False, True], ids=["owner", "inspected"])
async def test_w10_a_window_that_a_newer_owner_removed_is_not_corrupt(
    tmp_path: Path, inspected: bool
) -> None:
    folder = tmp_path / "log"
    await old_log(folder)
    log = LocalLog(LocalFiles(), str(folder), LOG_ID, OPTIONS)
    await (log.inspect() if inspected else log.open())
    await anyio.to_thread.run_sync(run_newer_owner, folder)
    with pytest.raises(Unavailable if inspected else NotOwner):
        await log.read_window(2)

    with pytest.raises(Unavailable if inspected else NotOwner):
        await contents(log)

    await log.close()
