"""Benchmarks of starting: the import, the first ack in a new folder, and the first ack of a host. Each
measurement is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime

import anyio.to_thread
import httpx

import tierlog
from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate
from benchmarks.service import line_of, start

_FIRST_ACK = """\
import sys, time
import anyio, tierlog

async def main(folder):
    begin = time.perf_counter()
    async with tierlog.open_store(folder) as store:
        await store.create_segment("bench/first")
        offset = await store.append("bench/first", b"first")
        seconds = time.perf_counter() - begin
        assert await store.read("bench/first", offset, 5) == b"first"
    print(seconds * 1000)

options = {"use_uvloop": True} if sys.argv[3] == "uvloop" else {}
anyio.run(main, sys.argv[1], backend=sys.argv[2], backend_options=options)
"""

_BARE_ACK = """\
import os, sys, time

begin = time.perf_counter()
os.makedirs(sys.argv[1] + "/wal")
fd = os.open(sys.argv[1] + "/wal/log", os.O_RDWR | os.O_CREAT)
os.fsync(fd)
for folder in (sys.argv[1] + "/wal", sys.argv[1]):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
os.pwrite(fd, b"first", 0)
os.fdatasync(fd)
print((time.perf_counter() - begin) * 1000)
"""


def environment(folder: str) -> dict[str, str]:
    """Bytecode is cached as for an installed package, whatever the environment is; the warm-up round fills
    the cache."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}


def run_program(folder: str, program: str, *arguments: str) -> str:
    """What the Python ``program`` prints, in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment(folder)
    )
    if done.returncode:
        raise BenchmarkError(f"the measured process ended with {done.returncode}: {done.stderr.strip()}")

    return done.stdout


async def open_first_ack(setting: Setting) -> Sequence[Pair]:
    backend, _, loop = setting.backend.partition("+")

    async def measure(program: str) -> float:
        folder = f"{setting.fresh('first')}/data"
        return float(
            await anyio.to_thread.run_sync(run_program, setting.folder, program, folder, backend, loop)
        )

    return await alternate(setting, lambda: measure(_FIRST_ACK), lambda: measure(_BARE_ACK), 7)


async def import_time(setting: Setting) -> Sequence[Pair]:
    """Whole processes: the time with the import, minus the time without it."""

    def seconds(program: str) -> float:
        begin = time.perf_counter()
        run_program(setting.folder, program)
        return time.perf_counter() - begin

    async def measure(program: str) -> float:
        return await anyio.to_thread.run_sync(seconds, program) * 1000

    pairs = await alternate(setting, lambda: measure("import tierlog"), lambda: measure("pass"), 15)
    # Noise may make a single difference negative, but not the median.
    return [Pair(max(0.001, pair.value - pair.reference), pair.reference) for pair in pairs]


async def host_first_ack(setting: Setting) -> Sequence[Pair]:
    folder = setting.fresh("served")
    async with tierlog.open_store(folder) as store:
        await store.create_segment("bench/first")

    async def value() -> float:
        return await anyio.to_thread.run_sync(_served_ack, setting.folder, folder)

    async def reference() -> float:
        return await anyio.to_thread.run_sync(_bare_answer)

    return await alternate(setting, value, reference, 5)


def _served_ack(folder: str, data: str) -> float:
    """Milliseconds from the supervisor's decision to start its host, which it logs, to the ack of an
    append."""
    command = [sys.executable, "-m", "tierlog", "serve", data, "--hosts=1", "--listen=127.0.0.1:0"]
    with (
        open(f"{folder}/served.log", "w+") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment(folder)
        ) as service,
    ):
        try:
            url = line_of(service).rpartition(" ")[2]
            with tierlog.connect_sync(url) as client:
                client.append("bench/first", b"first")
                acked = time.time()
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait()
        log.seek(0)
        lines = [json.loads(line) for line in log]
    [spawned] = [line["timestamp"] for line in lines if line.get("kind") == "SpawnHost"]
    return (acked - datetime.fromisoformat(spawned).timestamp()) * 1000


def _bare_answer() -> float:
    begin = time.perf_counter()
    with start("swallow") as server:
        try:
            httpx.post(line_of(server), content=b"first", trust_env=False).raise_for_status()
            return (time.perf_counter() - begin) * 1000
        finally:
            server.communicate()


BENCHMARKS = (
    Benchmark(
        "open_first_ack",
        "open of a fresh folder to the first ack",
        "In a fresh process that has imported tierlog: open_store with its default of 4 containers, create "
        "a segment, append; what is "
        "imported at the first open counts. Against making a folder and a file and syncing one write.",
        "ms",
        150.0,
        open_first_ack,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "host_first_ack",
        "start of a host process to the first ack",
        "`tierlog serve` on a small store of 4 containers with one host: from the supervisor's decision to "
        "start the host to the ack of an append over HTTP; imports and openings count. Against the start of "
        "a bare uvicorn to its first answer.",
        "ms",
        600.0,
        host_first_ack,
        lower_is_better=True,
        goal_of="value",
    ),
    Benchmark(
        "import",
        "import tierlog, over bare Python",
        "The time of a process that imports tierlog, with its bytecode cached, less that of one that does "
        "nothing; the reference is "
        "the latter.",
        "ms",
        150.0,
        import_time,
        lower_is_better=True,
        goal_of="value",
    ),
)
