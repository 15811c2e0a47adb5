"""``scripts/simulate``: its options, and the campaign, replay or mutation score that they ask for.

Exit codes: 0 nothing found, 1 a violation, 2 wrong usage, 130 Ctrl-C, after a verdict over the seeds run
until then and with all processes ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from tierlog.actors.cli.options import Json
from tierlog.actors.cli.running import fail

from .campaign import SEED_SECONDS_MAX, CampaignOptions, fresh_base, processors, run_campaign
from .interrupts import interrupt_once
from .mutants.catalogue import CATALOGUE
from .mutants.score import ScoreOptions, show_score
from .replay import ReplayOptions, replay
from .report import OPERATIONS, CampaignReport
from .run import run_seed
from .shrink import Steps, parse_steps
from .workers import Runner, WorkersCannotStart

FOUND_NOTHING, FOUND, INTERRUPTED = 0, 1, 130
SHRINK_SECONDS = 60.0
MUTANT_SEEDS = 300
"""For each mutant, if no number is given."""
FLEET_HOSTS_MIN = 10
_DEFAULT_MINUTES = 1.0

_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")


@attrs.frozen(kw_only=True)
class Request:
    """The options, as they were given."""

    seed: int | None = None
    keep: Steps | None = None
    shrink_seconds: float = SHRINK_SECONDS
    trace: Path | None = None
    seeds: tuple[int, int] | None = None
    """The first seed, and how many."""
    count: int | None = None
    minutes: float | None = None
    failures: Path | None = None
    stop_at_first: bool = False
    mutants: bool = False
    jobs: int | None = None
    operations: int = OPERATIONS
    seed_seconds: float = SEED_SECONDS_MAX
    quiet: bool = False
    json: bool = False
    fleet: tuple[int, int] | None = None
    """Hosts and containers."""


# --- the command line ----------------------------------------------------------------------------


def _many(name: str, text: str, **settings: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel="Many seeds", **settings)


def _one(name: str, text: str, **settings: Any) -> Any:
    return typer.Option(name, help=text, rich_help_panel="One seed again", **settings)


_FLEET: Any = typer.Option(
    "--fleet",
    metavar="HOSTS:CONTAINERS",
    help="In place of stores, a fleet of so many hosts, and its supervisors.",
)


def simulate(
    count: Annotated[int | None, _many("--count", "Number of fresh seeds.", min=1)] = None,
    minutes: Annotated[
        float | None, _many("--minutes", "Minutes to run; default: 1 without --count and --seeds.", min=0)
    ] = None,
    seeds: Annotated[str | None, _many("--seeds", "Run these seeds.", metavar="FIRST:COUNT")] = None,
    jobs: Annotated[int | None, _many("--jobs", "Processes; default: one for each core.", min=1)] = None,
    stop_at_first: Annotated[bool, _many("--stop-at-first", "End at a violation.")] = False,
    failures: Annotated[
        Path | None, _many("--failures", "Append failing seeds to this file, as JSON lines.", metavar="FILE")
    ] = None,
    mutants: Annotated[
        bool, _many("--mutants", "Plant known bugs, one at a time, and count which are caught.")
    ] = False,
    seed: Annotated[int | None, _one("--seed", "Replay this seed.", min=0)] = None,
    keep: Annotated[
        str | None, _one("--keep", "Only these steps of its plan, as 3,7,20-31.", metavar="STEPS")
    ] = None,
    no_shrink: Annotated[bool, _one("--no-shrink", "Do not search for a smaller failure.")] = False,
    shrink_seconds: Annotated[
        float | None, _one("--shrink-seconds", "How long to search for one; default: 60.", min=0)
    ] = None,
    trace: Annotated[Path | None, _one("--trace", "Write the whole trace.", metavar="FILE")] = None,
    operations: Annotated[
        int, typer.Option("--operations", min=1, help="Operations of the clients in each seed.")
    ] = OPERATIONS,
    seed_seconds: Annotated[
        float,
        typer.Option("--seed-seconds", min=1, help="A seed that takes longer in real time is a violation."),
    ] = SEED_SECONDS_MAX,
    fleet: Annotated[str | None, _FLEET] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print failing seeds only.")] = False,
    json: Json = False,
) -> None:
    """Run whole stores in virtual time, with crashes, power losses, zombies and faults of every kind, and
    check every answer.

    Without options: fresh seeds for a minute on all cores, then a verdict. Each failing seed comes with the
    command that replays it. Exit code 0 if nothing was found, 1 if something was.
    """
    many = {"--count": count, "--minutes": minutes, "--seeds": seeds, "--jobs": jobs, "--failures": failures}
    many |= {"--stop-at-first": stop_at_first or None, "--mutants": mutants or None}
    one: dict[str, object] = {"--keep": keep, "--no-shrink": no_shrink or None, "--trace": trace}
    one |= {"--shrink-seconds": shrink_seconds}
    _check(seed, many, one)
    request = Request(
        seed=seed,
        keep=None if keep is None else _steps(keep),
        shrink_seconds=0 if no_shrink else SHRINK_SECONDS if shrink_seconds is None else shrink_seconds,
        trace=trace,
        seeds=None if seeds is None else _range(seeds),
        count=count,
        minutes=minutes,
        failures=failures,
        stop_at_first=stop_at_first,
        mutants=mutants,
        jobs=jobs,
        operations=operations,
        seed_seconds=seed_seconds,
        quiet=quiet,
        json=json,
        fleet=None if fleet is None else _fleet(fleet),
    )
    _check_fleet(request)
    interrupt_once()
    _run_or_fail(request)


def _run_or_fail(request: Request) -> None:
    try:
        raise typer.Exit(run(request))
    except WorkersCannotStart as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _check(seed: int | None, many: Mapping[str, object], one: Mapping[str, object]) -> None:
    """Refuse options that would do nothing."""
    idle = [name for name, value in (one if seed is None else many).items() if value is not None]
    if idle:
        raise typer.BadParameter(f"{idle[0]} is of use only {'with' if seed is None else 'without'} --seed")
    alone = [
        name for name in ("--stop-at-first", "--failures") if many["--mutants"] and many[name] is not None
    ]
    if alone:
        raise typer.BadParameter(f"{alone[0]} is of no use with --mutants, whose table names all seeds")
    if many["--seeds"] is not None and many["--count"] is not None:
        raise typer.BadParameter("--seeds gives the number of seeds: leave out --count")


def _steps(text: str) -> Steps:
    try:
        return parse_steps(text)
    except ValueError as error:
        raise typer.BadParameter(f"--keep: {error}") from None


def _range(text: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if found is None or not int(found[2]):
        raise typer.BadParameter(
            f"--seeds: {text!r} is no range: write the first seed and how many, as in 1000:50"
        )
    return int(found[1]), int(found[2])


def _fleet(text: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if found is None or int(found[1]) < FLEET_HOSTS_MIN or int(found[2]) < int(found[1]):
        raise typer.BadParameter(
            f"--fleet: {text!r} is no fleet: write its hosts, {FLEET_HOSTS_MIN} at least, and its "
            f"containers, one for each host at least, as in 20:400"
        )
    return int(found[1]), int(found[2])


def _check_fleet(request: Request) -> None:
    if request.fleet is None:
        return

    idle = attrs.evolve(request, fleet=None, seed=None, seeds=None, count=None, quiet=False, json=False)
    if idle != Request(shrink_seconds=request.shrink_seconds):
        raise typer.BadParameter("--fleet takes --seed, --seeds, --count, --quiet and --json only")


# --- what they amount to -------------------------------------------------------------------------


def run(request: Request, runner: Runner = run_seed) -> int:
    """Carry it out; returns the exit code. ``OSError`` if a file that was named cannot be written,
    ``WorkersCannotStart``."""
    if request.fleet is not None:
        return _fleets(request, *request.fleet)
    if request.mutants:
        return _score(request)
    return _campaign(request, runner) if request.seed is None else _replay(request, request.seed, runner)


def _fleets(request: Request, hosts: int, containers: int) -> int:
    # By the first one: all other runs do without.
    from .fleets.show import show_fleets
    from .fleets.world import FULL, SMALL

    like = SMALL if hosts <= SMALL.hosts else FULL
    size = attrs.evolve(like, hosts=hosts, containers=containers)
    first, count = request.seeds or (fresh_base(), request.count or 1)
    seeds = range(first, first + count) if request.seed is None else (request.seed,)
    return show_fleets(seeds, size, quiet=request.quiet, as_json=request.json)


def _score(request: Request) -> int:
    """Every mutant runs the same seeds, so that two scores can be compared."""
    first, count = request.seeds or (0, request.count or MUTANT_SEEDS)
    options = ScoreOptions(
        tuple(CATALOGUE.values()),
        first=first,
        seeds=count,
        seconds=None if request.minutes is None else request.minutes * 60,
        jobs=request.jobs or processors(),
        operations=request.operations,
    )
    return show_score(options, quiet=request.quiet, as_json=request.json)


def _campaign(request: Request, runner: Runner) -> int:
    options = _campaign_options(request)
    report = CampaignReport(
        options, quiet=request.quiet, as_json=request.json, failures_file=request.failures
    )
    with report.shown():
        tally = run_campaign(options, runner, report.on_verdict)
    report.ended(tally)
    if tally.interrupted:
        return INTERRUPTED
    return FOUND if tally.failures else FOUND_NOTHING


def _campaign_options(request: Request) -> CampaignOptions:
    first, count = request.seeds or (fresh_base(), request.count)
    minutes = _DEFAULT_MINUTES if count is None and request.minutes is None else request.minutes
    return CampaignOptions(
        first=first,
        count=count,
        seconds=None if minutes is None else minutes * 60,
        jobs=request.jobs or processors(),
        operations=request.operations,
        stop_at_first=request.stop_at_first,
        seed_seconds_max=request.seed_seconds,
    )


def _replay(request: Request, seed: int, runner: Runner) -> int:
    options = ReplayOptions(
        seed=seed,
        operations=request.operations,
        keep=request.keep,
        seed_seconds_max=request.seed_seconds,
        shrink_seconds=request.shrink_seconds,
        trace_file=request.trace,
        quiet=request.quiet,
        as_json=request.json,
    )
    try:
        verdict, shrunk = replay(options, runner)
    except KeyboardInterrupt:
        return INTERRUPTED
    if shrunk is not None and shrunk.interrupted:
        return INTERRUPTED
    return FOUND_NOTHING if verdict.violation is None else FOUND
