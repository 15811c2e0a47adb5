"""Local logs on real files: two owners that fight over one folder in one process. Two processes, and writers
that are killed: ``tests/recovery``."""

from __future__ import annotations

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
