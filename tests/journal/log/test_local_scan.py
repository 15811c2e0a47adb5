"""A log file is read in windows: what is found does not depend on where they end; memory holds one (W2)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.disk import SimulatedDisk
from simulation.file_layer import Fault, SimulatedFiles

from support.log_world import make_log
from support.memory_files import run_on, scan_bytes
from tierlog.journal.log import local_history, local_scan
from tierlog.journal.log.frames import (
    FRAME_HEADER_BYTES,
    FileHeader,
    FileId,
    encode_frame,
    encode_header,
    file_salt,
)
from tierlog.journal.log.local_history import HistoryReader
from tierlog.journal.log.local_layout import LocalLogOptions, LogLayout
from tierlog.journal.log.local_scan import Ending, FrameRun, Scan, Window, scan
from tierlog.storage_backends.base.files import Close, IoCall, Open, Program, Read
from tierlog.storage_backends.files import local
from tierlog.testing.log_conformance import contents

pytestmark = pytest.mark.anyio

FILE = FileId(7, 2)
SALT = file_salt(bytes(16), FILE)
RUN = FrameRun(0, 41, FILE.epoch, SALT, SALT)
OPTIONS = LocalLogOptions(reserve=0, low_water=0, length_step=3000)


@contextmanager
def windows_of(size: int) -> Iterator[None]:
    with (
        mock.patch.object(local_scan, "WINDOW_BYTES", size),
        mock.patch.object(local_history, "INDEXED_BYTES", size),
    ):
        yield


def frames_of(payloads: list[bytes]) -> bytes:
    data = b""
    for number, payload in enumerate(payloads, 41):
        data += b"".join(encode_frame(SALT, len(data), FILE.epoch, number, 0, 0, [payload])[1])
    return data


@given(
    st.lists(st.one_of(st.binary(max_size=300), st.just(b"\xf6TLG" * 40)), max_size=8),
    st.integers(1, 400),
    st.data(),
)
def test_where_windows_end_makes_no_difference(
    payloads: list[bytes], window: int, data: st.DataObject
) -> None:
    content = bytearray(frames_of(payloads) + data.draw(st.sampled_from([b"", bytes(500), b"\xf6TL" * 99])))
    if content and data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1
    whole = scan_bytes(bytes(content), RUN)
    with windows_of(window):
        assert scan_bytes(bytes(content), RUN) == whole


@pytest.mark.parametrize("window", range(1, 130, 7))
def test_a_frame_behind_damage_is_found_across_the_end_of_any_window(window: int) -> None:
    content = bytearray(frames_of([b"first", b"x" * 90, b"third"]))
    content[FRAME_HEADER_BYTES] ^= 1
    with windows_of(window):
        assert scan_bytes(bytes(content), RUN).ending is Ending.CORRUPT


@pytest.mark.parametrize(
    ("behind", "ending"),
    [
        (b"", Ending.TORN),
        (b"\xf6TL", Ending.TORN),
        (b"".join(encode_frame(SALT, (5 << 30) + 7, FILE.epoch, 44, 0, 0, [b"lost"])[1]), Ending.CORRUPT),
    ],
)
def test_holes_cost_nothing_and_what_lies_behind_them_is_found(
    tmp_path: Path, behind: bytes, ending: Ending
) -> None:
    path, reads = tmp_path / "x.wal", list[int]()
    with open(path, "wb") as file:
        file.write(frames_of([b"first", b"second"]))
        file.seek((5 << 30) + 7)
        file.write(behind)
        file.truncate(6 << 30)

    def program() -> Program[Scan]:
        handle = yield Open(str(path))
        found = yield from scan(Window(handle, 6 << 30), RUN, 6 << 30)
        yield Close(handle)
        return found

    def read(call: Read) -> bytes:
        reads.append(call.size)
        return bytes(local._PERFORM[Read](call))

    found = local.drive(program(), {**local._PERFORM, Read: read})

    assert (len(found.frames), found.ending) == (2, ending)
    assert len(reads) <= 3


async def test_memory_holds_one_window_or_one_larger_group() -> None:
    """A file of 3 GiB needed 6.2 GiB once."""
    disk, sizes = SimulatedDisk(Random(1)), list[int]()

    def note(index: int, call: IoCall) -> Fault | None:
        if isinstance(call, Read) and call.handle.path.endswith(".wal"):
            sizes.append(call.size)
        return None

    log = make_log(SimulatedFiles(disk), OPTIONS)
    await log.open()
    expected = {}
    for size in [700] * 50 + [9000] + [10] * 300:
        number = await log.append([bytes([size % 251]) * size])
        expected[number] = bytes([size % 251]) * size
    await log.close(clean=False)
    with windows_of(2000):
        log = make_log(SimulatedFiles(disk, note), OPTIONS)
        await log.open()
        assert await contents(log) == expected
        await log.close()
    assert max(sizes) == 9000 + FRAME_HEADER_BYTES
    assert sorted(sizes)[-4] <= 2000
    assert len(sizes) < 120


def test_a_log_of_small_groups_needs_a_few_bytes_for_each_while_it_is_opened() -> None:
    """It needed 353 once, more than such a group has."""
    count, layout = 10_000, LogLayout("wal")
    data = bytearray(encode_header(FileHeader(bytes(16), FILE, 1, 0, False, ())))
    for number in range(1, count + 1):
        tag = number % 1000 == 0
        data += b"".join(encode_frame(SALT, len(data), FILE.epoch, number, tag, 0, [b"small"])[1])
    files = {layout.wal(FILE): bytes(data)}
    with windows_of(10_000):
        tracemalloc.start()
        history = run_on(files, HistoryReader(layout, bytes(16), {}).read([FILE]))
        groups = history.groups()
        tags = history.tags()
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (len(groups), tags) == (count, dict.fromkeys(range(1000, count + 1, 1000), 1))
    assert tags == {group.number: group.tag for group in groups if group.tag}
    assert used < 32 * count
