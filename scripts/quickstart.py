"""Puts real text into an embedded store, kills its writer with SIGKILL in the middle, and proves that nothing was lost or doubled.

1. The input is cut into one share for each segment; every line is an event. A child process appends all shares at the same time, with a
   writer id and event numbers, and reports what was acked.
2. This process kills the child at a random moment. A fresh child opens the folder, finds the last event number of each segment, sends
   the events before it once more (as a client does that never saw the answer) and goes on behind it.
3. The store is opened here, flushed to long-term storage, and gets a last part that stays in the log.
4. It is opened again. Every segment is read back, from chunks and from the log, and compared with the input byte by byte, by length and
   by SHA-256. The files under lts/ are compared too, without the store's help.

The last line says `verified <N> bytes in <M> segments, <K> kills, 0 lost`.
Exit status: 0 if all of that holds; 1 if something does not, and the message says which segment, where and what; 2 for wrong arguments;
130 after Ctrl-C, when the children are stopped and a temporary folder is removed.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Self

import anyio
import attrs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

import tierlog
from quickstart_parts.checking import Report, verify
from quickstart_parts.killing import Tally, Writers, choose_kill_points
from quickstart_parts.shares import QuickstartError, Share, read_input, split_input, store_config
from quickstart_parts.writing import append_events, say, write_child
from tierlog.actors.config_units import GiB, KiB, MiB, UnitError, size
from tierlog.actors.core.lifecycle import first_leaf

LIMIT = size(32 * MiB, KiB, 64 * GiB, "How much of the input is used.")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    backend: str


# --- what is shown --------------------------------------------------------------------------------------------


class Display:
    """Bars while it runs, on a terminal; a table and one line at the end, anywhere."""

    def __init__(self, shares: list[Share]) -> None:
        self._console = Console()
        self._shares = shares
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._bars = [self._progress.add_task(f"write {share.name}", total=share.flushed_bytes) for share in shares]

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """A line that only people at a terminal see."""
        if self._console.is_terminal:
            self._progress.console.print(text, highlight=False)

    def written(self, tally: Tally) -> None:
        for bar, share, events in zip(self._bars, self._shares, tally.acked, strict=True):
            self._progress.update(bar, completed=share.bytes_of(events))

    def begin_reading(self) -> None:
        for bar, share in zip(self._bars, self._shares, strict=True):
            self._progress.reset(bar, total=len(share.data), description=f"read  {share.name}")

    def read(self, index: int, offset: int) -> None:
        self._progress.update(self._bars[index], completed=offset)

    def table(self, report: Report, tally: Tally | None) -> None:
        table = Table("segment", "events", "bytes", "in chunks", "in the log", "chunks", "sha256")
        for column in table.columns[1:6]:
            column.justify = "right"
        for part in report.segments:
            numbers = (part.events, part.length, part.flushed, part.length - part.flushed, part.chunks)
            table.add_row(part.name.partition("/")[2], *map(str, numbers), part.sha256[:8])
        self._console.print(table)
        self._console.print(_rates(report, tally), highlight=False)


def _rates(report: Report, tally: Tally | None) -> str:
    read = f"read back at {report.length / 1e6 / report.read_seconds:.1f} MB/s"
    if tally is None:
        return read

    written = report.length / 1e6 / tally.write_seconds
    return (
        f"{tally.kills} kills, {tally.repeated} events sent twice on purpose, written at {written:.1f} MB/s "
        f"(starts and recoveries included), flushed in {tally.flush_seconds:.2f} s, {read}"
    )


# --- what is done ---------------------------------------------------------------------------------------------


async def run(options: Options, folder: Path, shares: list[Share]) -> None:
    """Write, kill, flush, append, verify."""
    tally = Tally([0] * len(shares))
    with Display(shares) as display:
        writers = Writers(
            child_command(options, folder),
            shares,
            tally,
            lambda: display.written(tally),
            lambda acked: display.note(f"killed the writer with SIGKILL when {acked / 1e6:.1f} MB were acked; starting another"),
        )
        if options.kills:
            display.note(f"kill points from --seed {options.seed}")
        await writers.write_all(choose_kill_points(shares, options.kills, Random(options.seed)))
        display.note("flushing to long-term storage, then a last part that stays in the log")
        await finish(folder, shares, tally)
        display.begin_reading()
        report = await verify(folder, shares, display.read)

    display.table(report, tally)
    print(f"verified {report.length} bytes in {len(shares)} segments, {tally.kills} kills, 0 lost")


async def finish(folder: Path, shares: list[Share], tally: Tally) -> None:
    """Flush what the children wrote, then append the rest, which stays in the log."""

    async def count(index: int, events: int) -> None:
        tally.acked[index] = events

    async with tierlog.open_store(folder, config=store_config(shares)) as store:
        begin = time.perf_counter()
        await store.flush()
        tally.flush_seconds = time.perf_counter() - begin
        # One event at a time: garbage of a killed writer makes one more flush cycle due once it is found, and the log shall outlast that.
        for index, share in enumerate(shares):
            await append_events(store, share, share.flushed_events, len(share.ends), 0, partial(count, index))


async def verify_only(folder: Path, shares: list[Share]) -> None:
    with Display(shares) as display:
        display.begin_reading()
        report = await verify(folder, shares, display.read)

    display.table(report, None)
    print(f"verified {report.length} bytes in {len(shares)} segments")


def child_command(options: Options, folder: Path) -> list[str]:
    command = [sys.executable, __file__, "write", "--data", str(folder), "--backend", options.backend]
    command += ["--limit", f"{options.limit} B", "--segments", str(options.segments)]
    return command if options.input is None else [*command, "--input", str(options.input)]


async def until_signalled(work: Callable[[], Awaitable[None]]) -> int:
    """Do ``work``; returns the exit status. A signal cancels it, which stops its children."""
    status = 1

    async def watch(scope: anyio.CancelScope) -> None:
        nonlocal status
        with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
            async for number in signals:
                status = 128 + number
                scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, tasks.cancel_scope)
        status = await reported(work)
        tasks.cancel_scope.cancel()

    return status


async def reported(work: Callable[[], Awaitable[None]]) -> int:
    """0, or 1 with the reason on the standard error output."""
    try:
        await work()
    except (QuickstartError, tierlog.TierlogError) as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1

    return 0


async def write(folder: Path, shares: list[Share]) -> int:
    """The child. Its errors go to the parent as its last message."""
    status = 0
    try:
        await write_child(folder, shares)
    except* (QuickstartError, tierlog.TierlogError) as errors:
        say("failed", error=str(first_leaf(errors)))
        status = 1

    return status


# --- the command line -----------------------------------------------------------------------------------------


def parse(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "command",
        nargs="?",
        choices=("run", "verify", "write"),
        default="run",
        help="run: all of it (default); verify: only step 4, on a folder that was kept, with the same --input, --limit and --segments; "
        "write: only the writer, which `run` starts and kills (it talks JSON lines)",
    )
    parser.add_argument("--input", type=Path, metavar="PATH", help="a file, or a folder with files (default: Python's standard library)")
    parser.add_argument(
        "--limit", type=_limit, default=LIMIT.default, metavar="SIZE", help="use so much of it, such as '8 MiB' (default: 32 MiB)"
    )
    parser.add_argument("--segments", type=_count(1, 1000), default=4, metavar="N", help="segments to spread it over (default: 4)")
    parser.add_argument("--kills", type=_count(0, 100), default=1, metavar="N", help="times to kill the writer (default: 1)")
    parser.add_argument("--seed", type=int, help="of the moments of the kills (default: another one each time; a terminal shows it)")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="a new or empty folder for the store, which is kept (default: a temporary one)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder too, and say where it is")
    parser.add_argument(
        "--backend", choices=("asyncio", "trio"), default="asyncio", help="the event loop (default: asyncio, on uvloop if it is there)"
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
        if options.data is not None and options.data.exists() and (not options.data.is_dir() or any(options.data.iterdir())):
            parser.error(f"--data: {options.data} is not an empty folder; name a new one, or look at it with `scripts/quickstart verify`")
    elif options.data is None:
        parser.error(f"{options.command} needs --data")
    elif options.command == "verify" and not (options.data / "wal" / "store").exists():
        parser.error(f"--data: {options.data} holds no store")

    if options.backend == "trio" and importlib.util.find_spec("trio") is None:
        parser.error("--backend trio needs trio: install it into the environment that runs this, with `pip install trio`")


def _limit(text: str) -> int:
    try:
        limit = LIMIT.read(int(text) if text.isdecimal() else text)
        LIMIT.check(limit)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from error

    return int(limit)


def _count(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")

        return int(text)

    return number


def _folder(options: Options) -> AbstractContextManager[str]:
    if options.data is not None:
        return nullcontext(str(options.data))

    if options.keep:
        folder = tempfile.mkdtemp(prefix="tierlog-quickstart-")
        print(f"the store is kept in {folder}")
        return nullcontext(folder)

    return tempfile.TemporaryDirectory(prefix="tierlog-quickstart-")


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    loop: dict[str, Any] = {"use_uvloop": importlib.util.find_spec("uvloop") is not None} if options.backend == "asyncio" else {}
    start = partial(anyio.run, backend=options.backend, backend_options=loop)
    try:
        shares = split_input(read_input(options.input, options.limit), options.segments)
        if options.command == "write":
            assert options.data is not None
            return start(write, options.data, shares)

        with _folder(options) as folder:
            work = verify_only if options.command == "verify" else partial(run, options)
            return start(until_signalled, partial(work, Path(folder), shares))
    except QuickstartError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseExceptionGroup as group:
        # On trio, a Ctrl-C that comes before the signal receiver is there ends a task group.
        if group.subgroup(KeyboardInterrupt) is None:
            raise

        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
