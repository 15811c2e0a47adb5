"""The chaos scripts as commands: options, the service, the report, the exit status."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from random import SystemRandom

import anyio
from rich.console import Console

from chaos_parts.campaign import Options, Round, Run, campaign
from chaos_parts.numbers import count
from chaos_parts.processes import RunError, until_signalled
from chaos_parts.report import Report
from chaos_parts.service import OwnService, Service
from tierlog.actors.settings.units import MiB

_SETTINGS = """\
[server]
restarts = 1000                 # hosts die often here, and must be restarted each time
restart_backoff_max = "0.2 s"
failovers = 100000
container_crashes = 1000
"""
"""The only difference from the defaults: how often a host may die."""
_OPERATION_BYTES = 500
"""More than an event takes in the log on average, so that tails reach their length before a checkpoint."""
_ENDING = """
Exit status: 0 if all holds, 1 if not, 2 for wrong arguments, 130 after Ctrl-C (128 and the number of another
signal), which leaves no process and no temporary folder behind."""

MakeService = Callable[[Options, Path], Service]
"""Starts a service in a folder, or finds one."""


def settings(options: Options, server: str = "") -> str:
    """The configuration of a service that is started here; ``server`` is added to the section of that
    name. Containers have tails of about ``--tail`` operations."""
    bytes_max = max(MiB, options.tail * _OPERATION_BYTES)
    checkpoint = f'[checkpoint]\nwal_bytes = "{bytes_max} B"\n' if options.tail else ""
    return _SETTINGS + server + checkpoint


def usual_service(options: Options, folder: Path) -> Service:
    if options.url is not None:
        service = Service(options.url, pids_from=options.pids_from)
        service.check_answers()
        return service
    return OwnService(folder, hosts=options.hosts, containers=options.containers, config=settings(options))


def run_script(
    script: str,
    text: str | None,
    arguments: Sequence[str],
    inject: Round,
    *,
    rounds: int = 20,
    attach: bool = False,
    plain: bool = True,
    make_service: MakeService = usual_service,
) -> int:
    """Run a campaign; returns the exit status. ``text`` is the help, ``attach`` whether --url is allowed,
    ``plain`` whether there are writers without event numbers."""
    options = parse_options(make_parser(script, text, attach=attach, rounds=rounds), arguments)
    report = Report(script, options.seed, strict=options.goals)
    return carry_out(options, report, partial(campaign, inject=inject, plain=plain), make_service)


def carry_out(
    options: Options,
    report: Report,
    work: Callable[[Run], Awaitable[None]],
    make_service: MakeService = usual_service,
) -> int:
    """Make the service, do the work, show the report."""
    console = Console(stderr=options.json)
    keep = options.keep is not None
    folder = options.keep or Path(tempfile.mkdtemp(prefix=f"tierlog-chaos-{report.script}-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        service = make_service(options, folder)
    except (RunError, OSError) as error:
        if not keep:
            folder.rmdir()
        print(f"chaos_{report.script}: {error}", file=sys.stderr)
        return 1
    service.patience = options.patience
    try:
        run = Run(options, service, report, folder, console)

        async def guarded() -> None:
            with run.errors_reported():
                await work(run)

        with run.progress:
            status = anyio.run(until_signalled, guarded, backend_options={"use_uvloop": True})
        if status:
            report.show_interrupted(console, options.rounds)
            return status

        report.show(console, as_json=options.json)
        keep = keep or bool(report.violations)
        if keep:
            service.keep(folder)
            kept = f"the data and the log are kept in {folder}"
            console.print(kept, highlight=False, markup=False, soft_wrap=True)
        return 0 if report.holds else 1
    finally:
        service.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


# --- arguments ----------------------------------------------------------------------------------


def make_parser(
    script: str,
    text: str | None,
    *,
    attach: bool = False,
    rounds: int,
    writers: bool = True,
    hosts: int = 2,
    pace: float = 0.01,
    patience: float = 30,
) -> argparse.ArgumentParser:
    """``attach``: whether the script works on a service that it did not start. ``writers``: whether it has
    the common writers."""
    made = argparse.ArgumentParser(
        prog=f"scripts/chaos_{script}.py",
        description=f"{text}{_ENDING}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument

    def number(name: str, least: int, most: int, default: int, what: str) -> None:
        help = f"{what} (default: {default})"
        add(name, type=count(least, most), default=default, metavar="N", help=help)

    number("--rounds", 1, 100_000, rounds, "number of rounds")
    seed = "seed of all choices (default: random; the report shows it)"
    add("--seed", type=count(0, 1 << 63), default=SystemRandom().randrange(1 << 32), metavar="N", help=seed)
    number("--hosts", 1, 64, hosts, "host processes")
    number("--containers", 1, 256, 4, "segment containers")
    if writers:
        number("--writers", 1, 64, 2, "writer processes; each writes to every container")
        number("--tail", 0, 1_000_000, 0, "operations added to each container's log before each round")
        pause = f"mean pause between two calls of a writer (default: {pace:g})"
        add("--pace", type=seconds, default=pace, metavar="SECONDS", help=pause)
        client = "the writers' client: tierlog.connect, or plain HTTP requests"
        add("--client", choices=("tierlog", "raw"), default="tierlog", help=client)
        add("--goals", action="store_true", help="a figure that misses its goal is a violation too")
    keep = "a new folder for data and log, which is kept (default: a temporary one, kept after a violation)"
    add("--keep", type=Path, metavar="FOLDER", help=keep)
    settling = f"how long the service may take to settle, if no other work is done (default: {patience:g})"
    add("--patience", type=seconds, default=patience, metavar="SECONDS", help=settling)
    add("--json", action="store_true", help="the report as one JSON document")
    if attach:
        url = "attach to this supervisor on this machine instead of starting a service"
        add("--url", metavar="URL", help=url)
        pids = "with --url: lines of a host's name and its process id, read in each round"
        add("--pids-from", type=Path, metavar="FILE", help=pids)
    return made


def parse_options(made: argparse.ArgumentParser, arguments: Sequence[str]) -> Options:
    given = made.parse_args(arguments, Options())
    if given.url is not None and not given.url.startswith(("http://", "https://")):
        made.error(f"--url: {given.url!r} is not an HTTP URL such as http://127.0.0.1:8470")
    if given.pids_from is not None and given.url is None:
        made.error("--pids-from needs --url: the processes of a service that is started here are known")
    if given.pids_from is not None and not given.pids_from.is_file():
        made.error(f"--pids-from: {given.pids_from} is not a file")
    if given.keep is not None:
        given.keep = given.keep.absolute()
        if given.keep.exists() and not (given.keep.is_dir() and not any(given.keep.iterdir())):
            made.error(f"--keep: {given.keep} is not an empty folder")
    return given


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 60:
        raise argparse.ArgumentTypeError(f"seconds from 0 to 60, not {text!r}")
    return value
