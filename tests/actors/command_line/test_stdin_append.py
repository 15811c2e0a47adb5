"""What an interrupted append reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import pytest

from support.command_line import NAME
from tierlog import SegmentStore
from tierlog.actors.cli.stdin_append import AppendOptions, append_input, append_to, open_input


class Stalling:
    """A store that acks ``appends`` appends of 4 bytes from offset 13 on, and then none."""

    append_bytes_max = 4

    def __init__(self, appends: int) -> None:
        self.appends = appends
        self.stalled = anyio.Event()

    async def append(self, name: str, data: bytes, **options: object) -> int:
        if not self.appends:
            self.stalled.set()
            await anyio.sleep_forever()
        self.appends -= 1
        return 13


@pytest.mark.anyio
@pytest.mark.parametrize(
    "appends, report",
    [
        (0, "no append was acked"),
        (1, "the first 4 bytes were appended, from offset 13 on; an append in flight may follow them"),
    ],
)
async def test_an_interrupted_append_reports_what_was_acked(
    capsys: pytest.CaptureFixture[str], appends: int, report: str
) -> None:
    store = Stalling(appends)
    with open_input(None, "12345678") as source:
        async with anyio.create_task_group() as tasks:
            options = AppendOptions(lines=False, writer=None, event_number=None, expected_offset=None)
            tasks.start_soon(append_input, cast(SegmentStore, store), NAME, source, options)
            await store.stalled.wait()
            tasks.cancel_scope.cancel()

    assert capsys.readouterr().err == f"interrupted: {report}\n"


@pytest.mark.anyio
async def test_an_append_that_is_interrupted_while_its_store_closes_reports_what_was_acked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closes = anyio.Event()

    @asynccontextmanager
    async def opened() -> AsyncIterator[SegmentStore]:
        yield cast(SegmentStore, Stalling(appends=1))
        closes.set()
        await anyio.sleep_forever()

    with open_input(None, "1234") as source:
        async with anyio.create_task_group() as tasks:
            options = AppendOptions(lines=False, writer=None, event_number=None, expected_offset=None)
            tasks.start_soon(append_to, opened(), NAME, source, options)
            await closes.wait()
            tasks.cancel_scope.cancel()

    assert capsys.readouterr().err == "interrupted: all bytes were appended, from offset 13 on\n"
