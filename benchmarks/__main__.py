"""``scripts/bench``: run benchmarks of the embedded store and show each figure beside its reference.

Exit status: 0 when every benchmark ran, 1 when one failed (or, with ``--strict``, missed its goal), 2 for
wrong arguments, 130 after Ctrl-C. Results go to standard output, progress and failures to standard error.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NoReturn

import anyio
from rich.console import Console

from benchmarks import (
    appends,
    bookkeeper_log,
    chain,
    chunk_cache,
    garbage,
    history,
    http_parked,
    metadata,
    reading,
    recovery,
    report,
    s3,
    s3_log,
    segments,
    service,
    sessions,
    sorted_runs,
    spark,
    starting,
    tables,
    verifying,
)
from benchmarks.harness import Benchmark, BenchmarkError, Result, Setting, is_interactive
from benchmarks.peers import command as peers
from tierlog.actors.kernel.exits import first_leaf

MODULES = (
    appends,
    recovery,
    reading,
    chunk_cache,
    history,
    metadata,
    sorted_runs,
    tables,
    starting,
    segments,
    chain,
    garbage,
    verifying,
    service,
    sessions,
    http_parked,
    s3,
    s3_log,
    bookkeeper_log,
    spark,
)
BENCHMARKS = {benchmark.name: benchmark for module in MODULES for benchmark in module.BENCHMARKS}
BEGINNINGS = ("warming up", "round 1 of 1")
"""The first progress lines of a benchmark, and of a quick one."""

DESCRIPTION = """\
Benchmarks of the embedded store. Each figure alternates with a reference (store, reference, ...), and the
ratio is the median of the rounds' ratios, so a busy machine slows both sides alike. Written data is read
back; a benchmark whose data is missing fails. Without names all run, in about five minutes (a few more with
Spark).
"""

EPILOG = """\
examples:
  scripts/bench                          all, as a table
  scripts/bench append_1k recovery       two of them
  scripts/bench --json > figures.jsonl   one object a line: name, value, unit, reference, ratio,
                                         goal, lower_is_better, goal_of (ratio or value)
  scripts/bench --segments 1000000 segments_open segments_memory
                                         both with a million segments, made once for the two
  scripts/bench --backend trio           the same on trio
  scripts/bench --quick                  seconds instead of minutes; shows that all run, without
                                         meaningful figures
  scripts/bench --peers                  SQLite, Kafka, NATS and Redis beside tierlog, in turns
  scripts/bench --peers kafka restart    one of them, at one workload
  scripts/bench --peers --write          the same, written to docs/performance.md

Run it on the disk that matters: in a folder in memory syncs cost nothing.
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"bench: {message}\nbench: `scripts/bench --help` shows what it takes\n")


def parser() -> Parser:
    made = Parser(
        prog="scripts/bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "names", nargs="*", metavar="NAME", help="benchmarks to run (default: all; --list shows them)"
    )
    made.add_argument(
        "--json", action="store_true", help="print one JSON object a line, each as soon as it is known"
    )
    made.add_argument(
        "--list",
        action="store_true",
        help="show the benchmarks, what they measure and their goals, and run none",
    )
    made.add_argument("--quick", action="store_true", help="tiny sizes and one round: does it run?")
    made.add_argument("--strict", action="store_true", help="exit with 1 when a goal is missed")
    made.add_argument(
        "--megabytes",
        type=int,
        metavar="N",
        help="data of spark_write, spark_read and historical_read (default: about 1000; of spark_*_100 200)",
    )
    made.add_argument(
        "--segments",
        type=int,
        metavar="N",
        help="segments of segments_open and the like, at least 1500 (default: 10000)",
    )
    made.add_argument(
        "--data",
        metavar="FOLDER",
        default=".",
        help="where to put a folder with the data, removed afterwards (default: here)",
    )
    made.add_argument(
        "--backend",
        choices=("asyncio+uvloop", "asyncio", "trio"),
        help="event loop (default: asyncio+uvloop if installed)",
    )
    made.add_argument(
        "--peers",
        action="store_true",
        help=f"run the peers side by side; NAME is one of {', '.join(peers.NAMES)}",
    )
    made.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"rounds of the peers, of which medians are shown (default: {peers.ROUNDS}; with --quick 1)",
    )
    made.add_argument(
        "--write", action="store_true", help="write the peers' table and plot to docs/performance.md"
    )
    made.add_argument("--from", dest="start", default=".", help=argparse.SUPPRESS)
    return made


def check_names(names: Sequence[str], there: Collection[str], made: Parser) -> None:
    for name in names:
        if name not in there:
            close = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(there)}"
            made.error(f"there is no benchmark {name!r}; {hint}")


def choose(names: Sequence[str], made: Parser) -> list[Benchmark]:
    check_names(names, BENCHMARKS, made)
    return [BENCHMARKS[name] for name in dict.fromkeys(names)] or list(BENCHMARKS.values())


def runnable(benchmarks: Sequence[Benchmark], named: Sequence[str]) -> tuple[list[Benchmark], int]:
    """The benchmarks that can run here, and how many of the named ones cannot. Prints what is left out."""
    able: list[Benchmark] = []
    unable = 0
    for benchmark in benchmarks:
        reason = benchmark.missing()
        if reason:
            unable += benchmark.name in named
            print(f"bench: {benchmark.name} is left out: {reason}", file=sys.stderr)
        else:
            able.append(benchmark)

    return able, unable


def make_folder(options: argparse.Namespace, made: Parser) -> str:
    parent = os.path.join(options.start, options.data)
    try:
        folder = tempfile.mkdtemp(prefix="tierlog-bench-", dir=parent)
    except OSError as error:
        made.error(f"no data can be put into {parent}: {error.strerror}; name another folder with --data")

    if file_system(folder) in {"tmpfs", "ramfs"}:
        print(
            f"bench: {parent} is in memory, where a sync costs nothing: these figures say little; see --data",
            file=sys.stderr,
        )
    return os.path.abspath(folder)


@contextmanager
def temporary_folder(options: argparse.Namespace, made: Parser) -> Iterator[str]:
    """Removed at the end. An interrupt ends the program; a second one ends the removal, and what is left is
    named."""
    folder = make_folder(options, made)
    is_interrupted = False
    try:
        yield folder
    except KeyboardInterrupt:
        is_interrupted = True
        print("bench: interrupted; removing the data", file=sys.stderr, flush=True)
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except KeyboardInterrupt:
            is_interrupted = True
        if os.path.exists(folder):
            print(f"bench: not all of the data was removed: delete {folder}", file=sys.stderr)
        elif is_interrupted:
            print("bench: the data is removed", file=sys.stderr)
        if is_interrupted:
            raise SystemExit(130)


def file_system(path: str) -> str:
    """The type of the file system of ``path``; empty if it is unknown."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8") as stream:
            mounts = [line.split() for line in stream]
    except OSError:
        return ""

    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((fields[fields.index("-") + 1] for fields in mounts if fields[2] == wanted), "")


def default_backend() -> str:
    return "asyncio+uvloop" if find_spec("uvloop") else "asyncio"


def show_progress(name: str, text: str) -> None:
    if is_interactive():
        print(f"\r\x1b[K{name}: {text}" if text else "\r\x1b[K", end="", file=sys.stderr, flush=True)
    elif text in BEGINNINGS:
        print(f"{name} ...", file=sys.stderr, flush=True)


def run_one(benchmark: Benchmark, folder: str, options: argparse.Namespace, backend: str) -> Result:
    """Run one benchmark in an event loop and a folder of its own."""
    own = f"{folder}/{benchmark.name}"
    os.mkdir(own)
    setting = Setting(
        own,
        options.quick,
        backend,
        lambda text: show_progress(benchmark.name, text),
        options.megabytes,
        options.segments,
    )
    loop, _, variant = backend.partition("+")
    try:
        pairs = anyio.run(
            benchmark.run, setting, backend=loop, backend_options={"use_uvloop": True} if variant else {}
        )
    finally:
        show_progress(benchmark.name, "")
        shutil.rmtree(own)

    return benchmark.result(pairs)


def run_all(
    benchmarks: Sequence[Benchmark], folder: str, options: argparse.Namespace, backend: str
) -> tuple[list[Result], int]:
    """The results, and how many benchmarks failed. The others run anyway."""
    results: list[Result] = []
    failed = 0
    for benchmark in benchmarks:
        try:
            result = run_one(benchmark, folder, options, backend)
        except Exception as error:  # noqa: BLE001 it is reported, and the others run
            failed += 1
            print(f"bench: {benchmark.name} failed: {describe(error)}", file=sys.stderr)
            continue

        results.append(result)
        if options.json:
            print(report.json_line(result), flush=True)

    return results, failed


def describe(error: BaseException) -> str:
    cause = first_leaf(error)
    return str(cause) if isinstance(cause, BenchmarkError) else f"{type(cause).__name__}: {cause}"


def run_peers(options: argparse.Namespace, made: Parser, console: Console) -> int:
    check_names(options.names, peers.NAMES, made)
    if options.write and options.quick:
        made.error("--quick has no figures that are worth to --write")
    if options.backend not in {None, "asyncio+uvloop"}:
        made.error("the peers' clients run on asyncio+uvloop only")
    if options.rounds is not None and options.rounds < 1:
        made.error("--rounds is a number from 1 on")
    rounds = options.rounds or (1 if options.quick else peers.ROUNDS)
    chosen = peers.PeerOptions(options.names, rounds, options.quick, options.json, options.write)
    if options.list:
        peers.print_list(chosen, console)
        return 0

    with temporary_folder(options, made) as folder:
        return peers.run_peers(chosen, folder, file_system(folder), show_progress, console)


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.peers:
        return run_peers(options, made, Console(width=None if sys.stdout.isatty() else 240))
    benchmarks = choose(options.names, made)
    # A pipe has no width, so nothing is truncated.
    console = Console(width=None if sys.stdout.isatty() else 140)
    if options.list:
        report.print_list(benchmarks, console)
        return 0

    benchmarks, unable = runnable(benchmarks, options.names)
    if not benchmarks:
        return 1

    backend = options.backend or default_backend()
    with temporary_folder(options, made) as folder:
        results, failed = run_all(benchmarks, folder, options, backend)

    if results and not options.json:
        report.print_table(
            results,
            BENCHMARKS,
            console,
            f"tierlog, {backend}{', quick: figures mean nothing' if options.quick else ''}",
        )
    missed = options.strict and not all(result.is_met for result in results)
    return 1 if failed or missed or unable else 0


if __name__ == "__main__":
    sys.exit(main())
