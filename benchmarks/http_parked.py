"""Benchmark of parked long polls: the server memory of one of 10,000 readers that wait for the
next append.

The clients are plain sockets of this process, one for each poll. At the end one append wakes all of them, and
each must receive its bytes.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.abc
import anyio.to_thread

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting
from benchmarks.service import line_of, start

SEGMENT = "bench/parked"
REQUEST = (
    f"GET /v1/segments/{SEGMENT}/tail?wait=60 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
).encode()


async def parked_polls(setting: Setting) -> Sequence[Pair]:
    count = setting.size(10_000, 100)
    _allow_descriptors(count + 2000)  # the server leaves some to its storage
    with start("store", setting.fresh("polls")) as server:
        try:
            url = await anyio.to_thread.run_sync(line_of, server)
            async with tierlog.connect(url) as client:
                await client.create_segment(SEGMENT)
                each = await _park(setting, server.pid, urlsplit(url).port or 0, count, client)
        finally:
            server.communicate()

    return [Pair(each, 1e9 / 10_000)]


async def _park(setting: Setting, pid: int, port: int, count: int, client: tierlog.Client) -> float:
    """Growth of the server's memory, in bytes per poll."""
    before = _resident_bytes(pid)
    connections = []
    for number in range(count):
        connections.append(await _ask(port, REQUEST))
        if number % 500 == 0:
            setting.progress(f"{number} of {count}")

    while not await _are_parked(port, count):
        await anyio.sleep(0.05)
    each = (_resident_bytes(pid) - before) / count
    await client.append(SEGMENT, b"wake up")
    for connection in connections:
        if not (await _everything(connection)).endswith(b"\r\n\r\nwake up"):
            raise BenchmarkError("a parked poll did not get the bytes that came")

    return each


async def _are_parked(port: int, count: int) -> bool:
    """From the server's own metrics."""
    page = await _everything(
        await _ask(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    )
    return f"<p>{count} readers wait".encode() in page


async def _ask(port: int, request: bytes) -> anyio.abc.ByteStream:
    connection = await anyio.connect_tcp("127.0.0.1", port)
    await connection.send(request)
    return connection


async def _everything(connection: anyio.abc.ByteStream) -> bytes:
    async with connection:
        return b"".join([piece async for piece in connection])


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def _allow_descriptors(count: int) -> None:
    """For this process and, inherited, for the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        raise BenchmarkError(
            f"{count} connections need as many descriptors, and the limit is {hard}: see ulimit -Hn"
        )

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


BENCHMARKS = (
    Benchmark(
        "http_parked_polls",
        "memory of each of 10,000 parked long polls",
        "What the server's process grew by while they came, by their number; the reference is 1 GB for all. "
        "One append then wakes them.",
        "bytes",
        1.0,
        parked_polls,
        lower_is_better=True,
    ),
)
