"""Benchmarks over loopback HTTP: a server process, and this process or others as its clients.

Each reference is measured in the same round, with the same HTTP client library: bare uvicorn that accepts the
same posts, a server of static files. All clients and servers share the machine's cores, so the figures
include both sides."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import httpx

import tierlog
from benchmarks.appends import Append, Load
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate, payloads

SEGMENTS = [f"bench/http-{number}" for number in range(8)]
MIB = 1 << 20


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.http_programs", *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),
    )


def line_of(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    line = program.stdout.readline().strip()
    if not line:
        raise BenchmarkError(f"a program ended with {program.wait()}")
    return line


@asynccontextmanager
async def program(*arguments: str) -> AsyncIterator[str]:
    """Run a server of ``http_programs``; yields its URL."""
    with start(*arguments) as server:
        try:
            yield await anyio.to_thread.run_sync(line_of, server)
        finally:
            server.communicate()


@asynccontextmanager
async def served(setting: Setting) -> AsyncIterator[tuple[tierlog.Client, str]]:
    async with program("store", setting.fresh("served")) as url, tierlog.connect(url) as client:
        for name in SEGMENTS:
            await client.create_segment(name)
        yield client, url


async def lengths(client: tierlog.Client) -> int:
    return sum([(await client.segment_info(name)).length for name in SEGMENTS])


# --- appends ------------------------------------------------------------------------------------


async def append_1m(setting: Setting) -> Sequence[Pair]:
    """Four processes, each with two appends in flight; with ``--quick`` two processes."""
    count, clients = setting.size(64, 4), setting.size(4, 2)
    async with served(setting) as (client, url), program("swallow") as bare:

        async def value() -> float:
            before = await lengths(client)
            rate = await together("load", url, clients, count)
            if await lengths(client) - before != clients * count * MIB:
                raise BenchmarkError("the segments did not grow by what was acked")
            await client.flush()
            return rate

        return await alternate(setting, value, lambda: together("post", bare, clients, count), 5)


async def together(
    role: str, url: str, clients: int, count: int, size: int = MIB, in_flight: int = 2
) -> float:
    """MB/s of processes that start together, each with a segment of its own."""

    def run() -> float:
        programs = [
            start(role, url, SEGMENTS[number], str(count), str(size), str(in_flight))
            for number in range(clients)
        ]
        for each in programs:
            line_of(each)
        begin = time.perf_counter()
        for each in programs:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        for each in programs:
            line_of(each)
        seconds = time.perf_counter() - begin
        for each in programs:
            each.communicate()
        return clients * count * size / 1e6 / seconds

    return await anyio.to_thread.run_sync(run)


async def append_1k(setting: Setting) -> Sequence[Pair]:
    load = Load(256, setting.size(51_200, 1024), payloads(1024))
    return await _small(setting, load, lambda client: lambda item: client.append(SEGMENTS[0], item), 1, 1024)


async def append_batches(setting: Setting) -> Sequence[Pair]:
    items = payloads(1024)
    batches = [[items[(index * 7 + number) % len(items)] for number in range(200)] for index in range(8)]
    load = Load(4, setting.size(400, 8), batches)
    return await _small(
        setting, load, lambda client: lambda item: client.append_many(SEGMENTS[0], item), 200, 200 * 1024
    )


async def _small(
    setting: Setting, load: Load, make: Callable[[tierlog.Client], Append], events: int, size: int
) -> Sequence[Pair]:
    async with (
        served(setting) as (client, _),
        program("swallow") as bare,
        httpx.AsyncHTTPTransport(verify=False) as transport,
    ):

        async def value() -> float:
            before = await lengths(client)
            seconds, _ = await load.drive(make(client))
            if await lengths(client) - before != load.total * size:
                raise BenchmarkError("the segment did not grow by what was acked")
            await client.flush()
            return load.total * events / seconds

        async def reference() -> float:
            """The same number of bytes, in posts of 256 KiB like full batches, one at a time."""
            posts, body = max(1, load.total * size // (256 << 10)), os.urandom(256 << 10)
            begin = time.perf_counter()
            for _ in range(posts):
                response = await transport.handle_async_request(httpx.Request("POST", bare, content=body))
                await response.aread()
            return load.total * events / (time.perf_counter() - begin)

        return await alternate(setting, value, reference, 5)


# --- reads --------------------------------------------------------------------------------------


async def cold_read(setting: Setting) -> Sequence[Pair]:
    """The data was flushed, and evicted from the tail cache."""
    size, segment = setting.size(128 * MIB, 8 * MIB), SEGMENTS[0]
    blocks = payloads(4 * MIB, 4)
    async with served(setting) as (client, _):
        for number in range(size // (4 * MIB)):
            await client.append(segment, blocks[number % 4])
        for number in range(setting.size(64, 0)):
            await client.append(SEGMENTS[1], blocks[number % 4])
        await client.flush()
        file = os.path.join(setting.fresh("static"), "file")
        with open(file, "wb") as stream:
            for number in range(size // (4 * MIB)):
                stream.write(blocks[number % 4])

        async with program("static", file) as url, httpx.AsyncHTTPTransport(verify=False) as transport:

            async def of_file(offset: int) -> bytes:
                headers = {"Range": f"bytes={offset}-{offset + 4 * MIB - 1}"}
                response = await transport.handle_async_request(
                    httpx.Request("GET", url + "/file", headers=headers)
                )
                return await response.aread()

            def rate(read: Callable[[int], Awaitable[bytes]]) -> Callable[[], Awaitable[float]]:
                return lambda: _read_all(read, size, blocks)

            async def of_segment(offset: int) -> bytes:
                return await client.read(segment, offset, 4 * MIB)

            return await alternate(setting, rate(of_segment), rate(of_file), 5)


async def _read_all(read: Callable[[int], Awaitable[bytes]], size: int, blocks: list[bytes]) -> float:
    begin, position = time.perf_counter(), 0
    while position < size:
        data = await read(position)
        if data != blocks[position // (4 * MIB) % 4]:
            raise BenchmarkError(f"other bytes at {position} than were written")
        position += len(data)
    return size / 1e6 / (time.perf_counter() - begin)


BENCHMARKS = (
    Benchmark(
        "http_append_1m",
        "appends of 1 MiB over HTTP, from 4 processes",
        "Durable, two in flight each, against bare uvicorn that swallows the same posts from the same "
        "processes.",
        "MB/s",
        0.4,
        append_1m,
    ),
    Benchmark(
        "http_append_1k",
        "appends of 1 KiB over HTTP, 256 in flight, one client",
        "One await for each append; the client puts them together. Reference: bare uvicorn swallowing the "
        "same bytes in posts of 256 KiB.",
        "appends/s",
        25_000,
        append_1k,
        goal_of="value",
    ),
    Benchmark(
        "http_append_batches",
        "batches of 200 x 1 KiB over HTTP, 4 in flight",
        "append_many through one client. Reference: bare uvicorn swallowing the same bytes in posts of 256 "
        "KiB.",
        "events/s",
        100_000,
        append_batches,
        goal_of="value",
    ),
    Benchmark(
        "http_cold_read",
        "ranges of 4 MiB from long-term storage over HTTP",
        "Against a server of static files that gives the same ranges of a file, to the same HTTP library.",
        "MB/s",
        0.7,
        cold_read,
    ),
)
