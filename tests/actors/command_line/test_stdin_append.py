"""What an interrupted append reports."""

from __future__ import annotations

from typing import cast

import anyio
import pytest

from support.command_line import NAME
from tierlog import SegmentStore
from tierlog.actors.cli.stdin_append import AppendOptions, append_input, open_input


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
