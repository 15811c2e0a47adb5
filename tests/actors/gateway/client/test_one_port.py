"""Clients that reach one of two hosts only, in one-port mode: they do everything, and know no other host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest

import tierlog
from support.patience import scaled
from support.sync_client import CONNECTS, KINDS
from support.two_hosts import Host, name_in, two_hosts

pytestmark = pytest.mark.anyio

Connect = Callable[..., AbstractAsyncContextManager[Any]]
HERE, THERE = name_in(0), name_in(1)


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest) -> Connect:
    return CONNECTS[request.param]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """In a thread with an event loop of its own, as servers run on asyncio."""
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(two_hosts(tmp_path)) as (_, first, second),
    ):
        yield first, second


async def test_h22_one_host_leads_to_the_segments_of_both(connect: Connect, hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    async with connect(first.url) as client:
        for name in (HERE, THERE):
            await client.create_segment(name)
            for _ in range(2):
                assert await client.append(name, b"one", writer_id="w", event_number=1) == 0
        outcomes = await client.append_each([tierlog.BatchItem(name, b"two") for name in (HERE, THERE)])
        assert outcomes == [3, 3]
        assert await client.read(THERE, 0, 9) == b"onetwo"
        assert await client.last_event_number(THERE, "w") == 1
        with pytest.raises(tierlog.BadOffset):
            await client.append(THERE, b"x", expected_offset=1)
        await client.begin_transaction(THERE, "t")
        part = await client.stage_segment(THERE, "t", "p")
        await client.append(part, b"three")
        committed = await client.commit_transaction(THERE, "t", [tierlog.StagedPart(part, 5)])
        assert committed.offset == 6
        await client.create_table(name_in(1, "t"))
        await client.flush()
        assert await client.seal_segment(THERE) == 11
    assert sum(first.forwarded(name) for name in ("append", "batch")) > 0
    assert sum(second.forwarded(name) for name in ("append", "batch")) == 0


async def test_h22_a_tail_follows_through_another_host(hosts: tuple[Host, Host]) -> None:
    first, _ = hosts
    async with tierlog.connect(first.url) as client:
        await client.create_segment(THERE)
        received = bytearray()

        async def follow() -> None:
            async for block in client.tail(THERE):
                received.extend(block)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for number in range(20):
                await client.append(THERE, b"%d," % number)
            await client.seal_segment(THERE)
    assert received == b"".join(b"%d," % number for number in range(20))


async def test_h22_hundreds_of_calls_at_once_are_all_answered(hosts: tuple[Host, Host]) -> None:
    """Those that wait at the host, because many are under way, are not refused."""
    first, _ = hosts
    answers: list[object] = []
    async with tierlog.connect(first.url, deadline=scaled(30)) as client:
        await client.create_segment(THERE)
        await client.append(THERE, b"x")

        async def read() -> None:
            answers.append(await client.read(THERE, 0, 1))

        async with anyio.create_task_group() as tasks:
            for _ in range(500):
                tasks.start_soon(read)
        assert client.statistics().requests < 600
    assert answers == [b"x"] * 500
    assert first.forwarded("bytes") == 500
