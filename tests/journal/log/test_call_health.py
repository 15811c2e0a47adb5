"""What a log knows of the service that it calls, without asking it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
import trio
import trio.testing

from support.memory_objects import Bucket, MemoryObjects
from support.s3 import numbered_world
from tierlog.journal.log.call_health import CallHealth
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import Unavailable


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


def test_a_call_without_an_answer_is_an_outage_after_a_while(clock: trio.testing.MockClock) -> None:
    async def body() -> None:
        health = CallHealth()
        with health.watched():
            pass
        await anyio.sleep(60.0)
        assert health.outage() == "", "nothing was asked meanwhile"
        with health.watched():
            await anyio.sleep(4.0)
            assert health.outage() == "", "it may be slow"
            await anyio.sleep(4.0)
            assert health.outage() == "no success for 8 s; the last answer is 68 s old"
        assert health.outage() == ""

    trio.run(body, clock=clock)


def test_what_fails_is_an_outage_until_something_succeeds(clock: trio.testing.MockClock) -> None:
    async def body() -> None:
        health = CallHealth()
        with health.watched() as call:
            call.failed(Unavailable("slow down"))
            await anyio.sleep(0.5)
            assert health.outage() == "", "it is repeated"
            await anyio.sleep(1.5)
            assert health.outage() == "no success for 2 s, the last error: slow down"
        assert health.outage() == ""
        with pytest.raises(Unavailable), health.watched():
            raise Unavailable("no route")
        await anyio.sleep(30.0)
        assert health.outage().startswith("no success for 30 s; the last answer is 30 s old, the last error")
        with health.watched():
            pass
        assert health.outage() == ""

    trio.run(body, clock=clock)


def test_a_log_whose_bucket_is_away_says_so_while_it_repeats(clock: trio.testing.MockClock) -> None:
    class Away(MemoryObjects):
        is_away = False

        async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
            if self.is_away:
                raise Unavailable("the bucket cannot be reached")
            return await super().put(key, data, version=version)

    async def body() -> None:
        objects = Away(Bucket())
        log = S3Log(objects, "wal/", b"l" * 16, numbered_world(), S3LogOptions(pace=0.0))
        await log.open()
        await log.append([b"one"])
        assert log.outage() == ""
        objects.is_away = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.append, [b"two"])
            await anyio.sleep(3.0)
            assert "no success for 3 s" in log.outage()
            assert "the last error: the bucket cannot be reached" in log.outage()
            objects.is_away = False
        assert log.outage() == ""

    trio.run(body, clock=clock)
