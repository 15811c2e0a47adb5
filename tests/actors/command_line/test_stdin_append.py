"""What an interrupted or failed append reports."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
import typer

from support.command_line import NAME
from tierlog import SegmentStore, TooLarge
from tierlog.actors.cli.running import OUT_OF_MEMORY, execute
from tierlog.actors.cli.stdin_append import AppendOptions, Source, append_input, append_to, open_input


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


class OutOfMemory(Stalling):
    async def append(self, name: str, data: bytes, **options: Any) -> int:
        if not self.appends:
            raise MemoryError
        return await super().append(name, data, **options)


@pytest.mark.parametrize("appends, report", [(0, ""), (1, "; appended before that: the first 4 bytes")])
def test_an_append_without_memory_is_one_line_with_what_was_acked(
    capsys: pytest.CaptureFixture[str], appends: int, report: str
) -> None:
    """It ended with a traceback."""

    async def command() -> None:
        options = AppendOptions(lines=False, writer=None, event_number=None, expected_offset=None)
        with open_input(None, "12345678") as source:
            await append_input(cast(SegmentStore, OutOfMemory(appends)), NAME, source, options)

    with pytest.raises(typer.Exit):
        execute(command)

    assert capsys.readouterr().err == f"error: {OUT_OF_MEMORY}{report}\n"


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


class Raised:
    """A client that knows an old limit of 4 bytes, and asks for the new one of 8 before it refuses."""

    append_bytes_max = 4

    def __init__(self) -> None:
        self.appended: list[bytes] = []

    async def append_many(self, name: str, events: list[bytes], **_: object) -> int:
        return await self.append(name, b"".join(events))

    async def append(self, name: str, data: bytes, **_: object) -> int:
        if len(data) > self.append_bytes_max:
            self.append_bytes_max = 8
        if len(data) > self.append_bytes_max:
            raise TooLarge.append(len(data), self.append_bytes_max)
        self.appended.append(data)
        return 13

    async def last_event_number(self, name: str, writer: str) -> None:
        return None


@pytest.mark.anyio
@pytest.mark.parametrize(
    "options, data, appended",
    [
        (
            AppendOptions(lines=True, writer=None, event_number=None, expected_offset=None),
            "1\n34567\n",
            [b"1\n"],
        ),
        (AppendOptions(lines=False, writer="w", event_number=0, expected_offset=None), "34567\n", []),
    ],
)
async def test_a_limit_that_was_raised_since_refuses_nothing(
    options: AppendOptions, data: str, appended: list[bytes]
) -> None:
    client = Raised()
    with open_input(None, data) as source:
        assert await append_input(cast(SegmentStore, client), NAME, source, options) == 13
    assert client.appended == [*appended, b"34567\n"]

    with open_input(None, "123456789") as source, pytest.raises(TooLarge, match="at most 8 bytes, not 9"):
        await append_input(cast(SegmentStore, client), NAME, source, options)


@pytest.mark.anyio
async def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    """It is refused where no service would take it."""
    read = 0

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal read
        while True:
            read += 1 << 20
            yield bytes(1 << 20)

    options = AppendOptions(lines=True, writer=None, event_number=None, expected_offset=None)
    source = Source(endless, None, shows_progress=False)
    with pytest.raises(TooLarge, match="split it"):
        await append_input(cast(SegmentStore, Raised()), NAME, source, options)
    assert read <= 34 << 20
