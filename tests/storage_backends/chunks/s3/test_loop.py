"""The seam between the caller's loop and the requests': no request keeps running without a caller, and the
thread ends with the storage."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest

from support.http_server import until
from support.patience import scaled
from support.s3 import s3_storage
from support.s3_server import Fault, S3Server
from tierlog.storage_backends.chunks.s3_loop import CallersLoop, ThreadLoop, request_loop

pytestmark = pytest.mark.anyio


def s3_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tierlog-s3"]


async def test_asyncio_needs_no_thread_and_trio_has_one(anyio_backend_name: str) -> None:
    loop = request_loop()
    await loop.open()
    here = threading.get_ident()

    async def where() -> int:
        asyncio.get_running_loop()
        return threading.get_ident()

    there = await loop.run(where)
    await loop.close()

    assert isinstance(loop, CallersLoop if anyio_backend_name == "asyncio" else ThreadLoop)
    assert (there == here) is (anyio_backend_name == "asyncio")
    assert s3_threads() == []


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_uvloop_works_natively(server: S3Server) -> None:
    storage = s3_storage(server.url)
    await storage.open()
    await storage.create_with_content("a", [b"x" * 3_000_000])

    assert await storage.read("a", 1_000_000, 5_000_000) == b"x" * 2_000_000
    assert s3_threads() == []
    await storage.close()


async def test_errors_and_results_cross_the_event_loops() -> None:
    loop = request_loop()
    await loop.open()

    async def refuse() -> None:
        raise KeyError("as asked")

    with pytest.raises(KeyError, match="as asked"):
        await loop.run(refuse)
    await loop.close()


async def test_a_cancelled_call_has_ended_when_its_caller_continues() -> None:
    loop = request_loop()
    await loop.open()
    begun, ended = threading.Event(), threading.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)  # an end that takes its time is waited for
            ended.set()

    async def cancel_once_begun(scope: anyio.CancelScope) -> None:
        await anyio.to_thread.run_sync(begun.wait)
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(cancel_once_begun, scope)
            await loop.run(hang)
        assert scope.cancelled_caught
        assert ended.is_set()

    await loop.close()


async def test_a_call_that_is_cancelled_before_it_begins_has_no_effect() -> None:
    loop = request_loop()
    await loop.open()
    runs: list[str] = []

    async def note() -> str:
        await asyncio.sleep(0)
        runs.append("on")
        return "done"

    with anyio.CancelScope() as scope:
        scope.cancel()
        await loop.run(note)

    assert scope.cancelled_caught
    assert await loop.run(note) == "done"
    assert runs == ["on"]
    await loop.close()


async def test_a_cancelled_request_leaves_the_storage_usable(server: S3Server) -> None:
    storage = s3_storage(server.url, connections=1)
    await storage.open()
    await storage.create_with_content("a", [b"abc"])
    server.fail(Fault("GetObject", stall=True))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(storage.read, "a", 0, 3)
        await until(lambda: server.count("GetObject") == 1)
        tasks.cancel_scope.cancel()

    assert tasks.cancel_scope.cancelled_caught
    # The only connection is not stuck in the call that was given up.
    with anyio.fail_after(scaled(30)):
        assert await storage.read("a", 0, 3) == b"abc"
    await storage.close()
    assert s3_threads() == []


async def test_calls_run_side_by_side(server: S3Server) -> None:
    storage = s3_storage(server.url)
    await storage.open()
    await storage.create_with_content("a", [b"abc" * 100])
    server.fail(Fault("GetObject", stall=True))
    read: list[bytes] = []

    async def look(*arguments: Any) -> None:
        read.append(await storage.read(*arguments))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look, "a", 0, 3)
        with anyio.fail_after(scaled(30)):
            while server.count("GetObject") == 0:  # the server is in another thread
                await anyio.sleep(0.01)
            for _ in range(5):
                await look("a", 0, 3)
        tasks.cancel_scope.cancel()

    assert read == [b"abc"] * 5
    await storage.close()
