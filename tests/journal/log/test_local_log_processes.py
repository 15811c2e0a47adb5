"""Local logs on real files: two owners that fight over one folder, in one process and in two, and a writer
that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.storage_backends.base.errors import NotOwner
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.log_conformance import contents

pytestmark = pytest.mark.anyio

LOG_ID = b"0123456789abcdef"
OPTIONS = LocalLogOptions(file_size=4000, reserve=4096, allocation_step=8192, low_water=0)

FIGHTER = """
import sys, anyio
from tierlog.storage_backends.base.errors import NotOwner
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions

async def main(folder, name, rounds):
    for _ in range(rounds):
        options = LocalLogOptions(file_size=4000, reserve=4096, allocation_step=8192, low_water=0)
        log = LocalLog(LocalFiles(), folder, b"0123456789abcdef", options)
        try:
            await log.open()
            for index in range(40):
                number = await log.append([f"{name} {index}".encode().ljust(300)])
                print(number, name, index, flush=True)
        except NotOwner:
            pass
        await log.close()

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def start(folder: Path, name: str, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FIGHTER, str(folder), name, str(rounds)], stdout=subprocess.PIPE, text=True
    )


def acked_by(output: str) -> dict[int, bytes]:
    """What a process acked, by number; a line cut off by a kill does not count."""
    lines = [line.split() for line in output.splitlines(keepends=True) if line.endswith("\n")]
    return {int(number): f"{name} {index}".encode().ljust(300) for number, name, index in lines}


async def read_all(folder: Path) -> dict[int, bytes]:
    log = LocalLog(LocalFiles(), str(folder), LOG_ID, OPTIONS)
    await log.open()
    found = await contents(log)
    await log.close()
    return found


async def test_two_processes_fight_over_one_folder_and_no_acked_group_is_lost(tmp_path: Path) -> None:
    """W1: the next owner has read every group that was reported durable."""
    folder = tmp_path / "wal"
    fighters = [start(folder, name, 8) for name in ("one", "two")]
    outputs = [await anyio.to_thread.run_sync(fighter.communicate) for fighter in fighters]
    assert [fighter.returncode for fighter in fighters] == [0, 0]
    reported = [acked_by(output) for output, _ in outputs]
    found = await read_all(folder)

    assert not set(reported[0]) & set(reported[1])
    assert list(found) == list(range(1, len(found) + 1))
    assert len(reported[0]) + len(reported[1]) >= 40
    for acked in reported:
        assert {number: found[number] for number in acked} == acked


async def test_a_killed_writer_loses_no_acked_group(tmp_path: Path) -> None:
    folder = tmp_path / "wal"
    reported: dict[int, bytes] = {}
    for lines in (1, 7, 30, 75):
        writer = start(folder, "writer", 50)
        assert writer.stdout is not None
        output = "".join([writer.stdout.readline() for _ in range(lines)])
        os.kill(writer.pid, signal.SIGKILL)
        rest, _ = await anyio.to_thread.run_sync(writer.communicate)
        reported.update(acked_by(output + rest))
        found = await read_all(folder)
        assert {number: found[number] for number in reported} == reported


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
