"""How long one step of the event loop takes for a log of very many small groups (rule W10)."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from support.loop_steps import LongestSteps
from tierlog.journal.log.frames import FileId, encode_frame, file_salt
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import wal_name
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio
LOG_ID = bytes(16)


def make_log(folder: Path) -> LocalLog:
    return LocalLog(LocalFiles(), str(folder), LOG_ID)


async def write_groups(folder: Path, count: int) -> None:
    """What a killed owner leaves. The groups behind the first are written at once, as a sync takes long."""
    log = make_log(folder)
    epoch = (await log.open()).epoch
    last = await log.append([b"small"])
    await log.close(clean=False)
    file = FileId(epoch, 1)
    path = folder / wal_name(file)
    salt = file_salt(LOG_ID, file)
    data = bytearray(path.read_bytes().rstrip(b"\0"))  # without what was allocated ahead
    for number in range(last + 1, count + 1):
        data += b"".join(encode_frame(salt, len(data), epoch, number, 0, 0, [b"small"])[1])
    path.write_bytes(data)


async def groups_of(log: LocalLog) -> int:
    """Reads all groups and keeps none: a dict of 500,000 grows in steps of 10 ms of its own."""
    count = 0
    async with aclosing(log.read()) as groups:
        async for _ in groups:
            count += 1
    return count


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "count",
    [20_000, pytest.param(500_000, marks=[pytest.mark.extended, pytest.mark.timeout(600)])],
)
async def test_w10_no_step_grows_with_the_number_of_groups(count: int, tmp_path: Path) -> None:
    """A window of 4 MiB with 20,000 groups held up the event loop for 60 ms."""
    longest = LongestSteps()
    await write_groups(tmp_path, count)
    for _ in longest.attempts():
        log = make_log(tmp_path)
        with longest.of("inspect"):
            await log.inspect()
        await log.close()
        log = make_log(tmp_path)
        with longest.of("open"):
            await log.open()
        with longest.of("read"):
            assert await groups_of(log) == count
        with longest.of("read a window"):
            groups = await log.read_window(log.window_of(count // 2))
        assert count // 2 in dict(groups)
        with longest.of("close"):
            await log.close(clean=False)
