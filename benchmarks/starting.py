"""Benchmarks of starting: the import, and the first ack in a new folder. Each measurement is a Python process
of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import anyio.to_thread

from benchmarks.harness import Benchmark, BenchmarkError, Pair, Setting, alternate

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


def run_program(folder: str, program: str, *arguments: str) -> str:
    """What the Python ``program`` prints, in a process of its own."""
    # Bytecode is cached as for an installed package, whatever the environment is; the warm-up round fills the
    # cache.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
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
