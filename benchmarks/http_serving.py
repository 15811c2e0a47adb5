"""Benchmarks of the HTTP server: large appends, batches, cold range reads, and parked long polls.

All servers and clients are processes of their own on this machine, and talk over loopback. Servers run on uvloop and httptools.
The clients are plain sockets (``http_process.py``), so that the server is what is measured. A server and its clients share the
cores, as does the reference with the same clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import attrs

from .harness import Benchmark, BenchmarkError, Pair, Setting, alternate
from .reading import SMALL_CACHE
from .reading import fill as fill_segment

KIB, MIB = 1 << 10, 1 << 20
RAW = "Content-Type: application/octet-stream"
CLIENTS = 4


@attrs.frozen
class Program:
    """A server in a process of its own."""

    port: int
    pid: int

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """One request, answered with 2xx; its body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        answer = await reader.read()
        writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        if head.split(b" ")[1][:1] != b"2":
            raise BenchmarkError(f"{method} {path}: {head[:200]!r} {rest[:300]!r}")

        return rest

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")


async def _start(*arguments: str) -> anyio.abc.Process:
    command = [sys.executable, "-m", "benchmarks.http_process", *arguments]
    return await anyio.open_process(command, stderr=None, cwd=Path(__file__).resolve().parents[1])


async def _line(process: anyio.abc.Process) -> dict[str, Any]:
    received = b""
    assert process.stdout is not None
    while not received.endswith(b"\n"):
        try:
            received += await process.stdout.receive()
        except anyio.EndOfStream:
            raise BenchmarkError("a process of the benchmark ended early; its error is above") from None
    found: dict[str, Any] = json.loads(received.splitlines()[-1])
    return found


@asynccontextmanager
async def program(role: str, *arguments: str) -> AsyncIterator[Program]:
    process = await _start(role, *arguments)
    assert process.stdin is not None
    try:
        yield Program((await _line(process))["port"], process.pid)
        await process.stdin.aclose()
        with anyio.fail_after(30):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


@attrs.frozen
class Load:
    """``count`` requests of each client process, one after the other on each of its connections."""

    method: str
    paths: Sequence[Sequence[str]]
    """Of each process: one connection for each path."""
    headers: Sequence[str]
    count: int
    size: int = 0
    """Bytes of a body, or of an append of a batch."""
    batch: int = 0
    step: int = 0
    """For a read: bytes between the offsets of its ranges, ``{first}`` to ``{last}`` in headers."""

    async def drive(self, port: int) -> float:
        """Seconds until the last client has its last answer."""
        processes = [await _start("load", json.dumps(self._plan(port, paths))) for paths in self.paths]
        try:
            return await self._run(processes)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                with anyio.CancelScope(shield=True):
                    await process.aclose()

    def _plan(self, port: int, paths: Sequence[str]) -> Mapping[str, Any]:
        plan = {**attrs.asdict(self), "port": port, "paths": list(paths), "first": 0}
        return {**plan, "segment": paths[0].split("/segments/")[-1].split("?")[-1]}

    async def _run(self, processes: Sequence[anyio.abc.Process]) -> float:
        for process in processes:
            assert process.stdout is not None
            if await process.stdout.receive() != b"ready\n":
                raise BenchmarkError("a client did not start")

        for process in processes:
            assert process.stdin is not None
            await process.stdin.send(b"go\n")
        results = [await _line(process) for process in processes]
        for result in results:
            if result["failures"]:
                raise BenchmarkError(f"a request failed: {result['failures'][0]}")
        return max(float(result["seconds"]) for result in results)


# --- appends --------------------------------------------------------------------------------------------------


async def append_1m(setting: Setting) -> Sequence[Pair]:
    paths = [[f"/v1/segments/bench/{number}/append"] for number in range(CLIENTS)]
    load = Load("POST", paths, [RAW], setting.size(40, 2), size=MIB)
    return await _appends(setting, load, load.count * CLIENTS * MIB / 1e6)


async def batch_200(setting: Setting) -> Sequence[Pair]:
    paths = [[f"/v1/batch?bench/{number}"] for number in range(CLIENTS)]
    load = Load("POST", paths, ["Content-Type: application/x-tierlog-batch"], setting.size(150, 2), size=KIB, batch=200)
    return await _appends(setting, load, load.count * CLIENTS * 200)


async def _appends(setting: Setting, load: Load, amount: float) -> Sequence[Pair]:
    """``amount``: what one round counts for."""
    names = [f"bench/{number}" for number in range(CLIENTS)]
    rounds = 0
    async with program("gateway", setting.fresh("http"), os.environ.get("TIERLOG_BENCH_CONFIG", "")) as gateway, program("swallow") as bare:
        for name in names:
            await gateway.request("POST", f"/v1/segments/{name}/create")

        async def value() -> float:
            nonlocal rounds
            seconds = await load.drive(gateway.port)
            rounds += 1
            expected = rounds * load.count * load.size * max(load.batch, 1)
            for name in names:
                found = json.loads(await gateway.request("GET", f"/v1/segments/{name}/info"))["length"]
                if found != expected:
                    raise BenchmarkError(f"{name} is {found} bytes long after appends of {expected}")
            await gateway.request("POST", "/v1/flush")
            return amount / seconds

        async def reference() -> float:
            return amount / await load.drive(bare.port)

        return await alternate(setting, value, reference, 5)


# --- reads ----------------------------------------------------------------------------------------------------


async def cold_read(setting: Setting) -> Sequence[Pair]:
    size, folder = setting.size(192 * MIB, 16 * MIB), setting.fresh("cold")
    await fill_segment(folder, size)
    settings = Path(setting.folder, "small-cache.toml")
    settings.write_text(
        f"append_bytes_max = {SMALL_CACHE.append_bytes_max}\n[cache]\nbytes = {SMALL_CACHE.cache.bytes}\n", encoding="utf-8"
    )
    static = Path(setting.fresh("static"))
    with (static / "segment").open("wb") as target:
        for chunk in range(size // MIB):
            target.write(bytes([chunk % 251]) * MIB)

    def ranges(path: str) -> Load:
        return Load("GET", [[path]], ["Range: bytes={first}-{last}"], size // (8 * MIB), step=8 * MIB)

    async def measure(load: Load, role: str, *arguments: str) -> float:
        async with program(role, *arguments) as server:
            return size / await load.drive(server.port) / 1e6

    pairs = await alternate(
        setting,
        lambda: measure(ranges("/v1/segments/bench/reading/bytes"), "gateway", folder, str(settings)),
        lambda: measure(ranges("/segment"), "static", str(static)),
        5,
    )
    shutil.rmtree(static)
    return pairs


# --- parked polls ---------------------------------------------------------------------------------------------


async def parked_polls(setting: Setting) -> Sequence[Pair]:
    """Memory of polls that wait; the reference is the bound of 1 GB for as many."""
    count = setting.size(10_000, 100)
    _allow_descriptors(count + 200)
    async with program("gateway", setting.fresh("polls"), "") as gateway:
        await gateway.request("POST", "/v1/segments/a/create")
        before = gateway.resident_bytes()
        request = b"GET /v1/segments/a/tail?wait=60 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        connections = []
        for number in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=4096)
            writer.write(request)
            connections.append((reader, writer))
            if number % 500 == 499:
                setting.progress(f"{number + 1} polls")
        while f"<p>{count} readers".encode() not in await gateway.request("GET", "/"):
            await anyio.sleep(0.05)

        each = (gateway.resident_bytes() - before) / count
        await gateway.request("POST", "/v1/segments/a/append", b"wake", Content_Type="application/octet-stream")
        answers = [await reader.read() for reader, _ in connections]
        if not all(answer.endswith(b"\r\n\r\nwake") for answer in answers):
            raise BenchmarkError("a parked poll did not get the bytes that came")
        for _, writer in connections:
            writer.close()

    return [Pair(each, 1e9 / 10_000)]


def _allow_descriptors(count: int) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard < count:
            raise BenchmarkError(f"{count} connections need as many descriptors; the limit is {hard}: see ulimit -n")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


_SWALLOW = "bare uvicorn (uvloop, httptools) that reads the same posts and throws them away"

BENCHMARKS = (
    Benchmark(
        "http_append_1m",
        "appends of 1 MiB over HTTP, from 4 processes",
        f"Each process has one connection and one append in flight, to a segment of its own; one container. Against {_SWALLOW}.",
        "MB/s",
        0.4,
        append_1m,
    ),
    Benchmark(
        "http_batch_200",
        "batches of 200 x 1 KiB over HTTP, from 4 processes",
        f"As http_append_1m, with batches; the reference is {_SWALLOW}.",
        "appends/s",
        100_000,
        batch_200,
        goal_of="value",
    ),
    Benchmark(
        "http_cold_read",
        "ranges of 8 MiB of flushed data over HTTP",
        "One client reads a segment that is in no cache of the store, in order. Against Starlette's static files on uvicorn, with a file.",
        "MB/s",
        0.7,
        cold_read,
    ),
    Benchmark(
        "http_parked_polls",
        "memory of one of 10,000 parked long polls",
        "What the server process grew by, of each poll; all are then woken by one append. The reference is 1 GB for 10,000.",
        "bytes",
        1.0,
        parked_polls,
        lower_is_better=True,
    ),
)
