"""Benchmarks of chunks in S3: puts and gets of the binding, against bare aiobotocore doing the same with the
same server.

The server (``s3_server.py``) runs in a process of its own and keeps everything in memory, so that the
client's side is measured. On trio the bare client runs on an asyncio loop in a thread, as a whole; the
binding crosses to it with each call.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import attrs

from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, payloads
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.base.chunk_storage import ChunkStorage

BUCKET = "chunks"
IN_FLIGHT = 8
OBJECT_BYTES = 1 << 20


@attrs.frozen
class Load:
    """``count`` objects in all, ``IN_FLIGHT`` at a time."""

    count: int
    items: Sequence[bytes]

    def item(self, number: int) -> bytes:
        return self.items[number % len(self.items)]

    async def drive(self, one: Callable[[int], Awaitable[None]]) -> float:
        """Megabytes a second."""

        async def worker(first: int) -> None:
            for number in range(first, self.count, IN_FLIGHT):
                await one(number)

        begin = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for first in range(IN_FLIGHT):
                tasks.start_soon(worker, first)
        return self.count * OBJECT_BYTES / 1e6 / (time.perf_counter() - begin)


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """The URL of a server, empty unless ``arguments`` say else; the environment has credentials meanwhile."""
    credentials = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, str(Path(__file__).with_name("s3_server.py")), *arguments]
    with (
        mock.patch.dict(os.environ, credentials),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@asynccontextmanager
async def storage_at(url: str) -> AsyncIterator[ChunkStorage]:
    from tierlog.storage_backends.chunks.s3 import S3ChunkStorage
    from tierlog.storage_backends.chunks.s3_location import S3Location
    from tierlog.storage_backends.chunks.s3_requests import S3Options

    storage = S3ChunkStorage(S3Location(BUCKET, "bench/"), S3Options(endpoint=url), system_world())
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


class Bare:
    """A plain aiobotocore client, as its own documentation makes one, and its loop."""

    def __init__(self, url: str) -> None:
        from tierlog.storage_backends.chunks.s3_loop import request_loop

        self._url = url
        self._loop = request_loop()
        self._client: Any = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bare]:
        from aiobotocore.session import get_session

        context = get_session().create_client("s3", endpoint_url=self._url)
        await self._loop.open()
        self._client = await self._loop.run(context.__aenter__)
        try:
            yield self
        finally:
            await self._loop.run(lambda: context.__aexit__(None, None, None))
            await self._loop.close()

    async def drive(self, load: Load, one: Callable[[int], Awaitable[None]]) -> float:
        return await self.run(lambda: load.drive(one))

    async def run(self, measure: Callable[[], Coroutine[Any, Any, float]]) -> float:
        return await self._loop.run(measure)

    async def put(self, key: str, data: bytes) -> None:
        await self._client.put_object(Bucket=BUCKET, Key=key, Body=data, IfNoneMatch="*")

    async def get(self, key: str, size: int) -> bytes:
        answer = await self._client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes=0-{size - 1}")
        async with answer["Body"] as body:
            data: bytes = await body.read()
        return data


async def _measured(
    setting: Setting, rounds: Callable[[Rounds], Awaitable[Sequence[Pair]]]
) -> Sequence[Pair]:
    load = Load(setting.size(240, 16), payloads(OBJECT_BYTES, 16))
    with server() as url:
        async with storage_at(url) as storage, Bare(url).running() as bare:
            return await rounds(Rounds(setting, load, storage, bare))


@attrs.frozen
class Rounds:
    setting: Setting
    load: Load
    storage: ChunkStorage
    bare: Bare

    async def puts(self) -> Sequence[Pair]:
        async def put(number: int) -> None:
            await self.storage.create_with_content(f"ours/{number}", [self.load.item(number)])

        async def put_bare(number: int) -> None:
            await self.bare.put(f"bench/bare/{number}", self.load.item(number))

        async def value() -> float:
            figure = await self.load.drive(put)
            await self._verify_and_clear("ours/")
            return figure

        async def reference() -> float:
            figure = await self.bare.drive(self.load, put_bare)
            await self._verify_and_clear("bare/")
            return figure

        return await alternate(self.setting, value, reference)

    async def gets(self) -> Sequence[Pair]:
        for number in range(self.load.count):
            await self.storage.create_with_content(f"ours/{number}", [self.load.item(number)])

        async def get(number: int) -> None:
            self._check(number, await self.storage.read(f"ours/{number}", 0, OBJECT_BYTES))

        async def get_bare(number: int) -> None:
            self._check(number, await self.bare.get(f"bench/ours/{number}", OBJECT_BYTES))

        return await alternate(
            self.setting, lambda: self.load.drive(get), lambda: self.bare.drive(self.load, get_bare)
        )

    def _check(self, number: int, data: bytes) -> None:
        if len(data) != OBJECT_BYTES or data[-64:] != self.load.item(number)[-64:]:
            raise BenchmarkError(f"object {number} does not hold what was put there")

    async def _verify_and_clear(self, prefix: str) -> None:
        """Off the clock: everything is there, and makes room for the next round."""
        names = [info.name async for info in self.storage.list(prefix)]
        if len(names) != self.load.count:
            raise BenchmarkError(f"{len(names)} objects are below {prefix} after {self.load.count} puts")

        self._check(1, await self.storage.read(f"{prefix}1", 0, OBJECT_BYTES))
        for name in names:
            await self.storage.delete(name)


async def s3_put(setting: Setting) -> Sequence[Pair]:
    return await _measured(setting, Rounds.puts)


async def s3_get(setting: Setting) -> Sequence[Pair]:
    return await _measured(setting, Rounds.gets)


def missing() -> str:
    return "" if find_spec("aiobotocore") else "it needs aiobotocore: pip install 'tierlog[s3]'"


_DETAIL = (
    "{what} of 1 MiB, 8 in flight, against bare aiobotocore with the same server: in memory, in a process of "
    "its own, on loopback without TLS. The storage actor and the network of a real service are left out."
)
BENCHMARKS = (
    Benchmark(
        "s3_put",
        "new chunks in S3",
        _DETAIL.format(what="Conditional puts"),
        "MB/s",
        0.85,
        s3_put,
        missing=missing,
    ),
    Benchmark(
        "s3_get",
        "reads of chunks in S3",
        _DETAIL.format(what="Ranged gets"),
        "MB/s",
        0.85,
        s3_get,
        missing=missing,
    ),
)
