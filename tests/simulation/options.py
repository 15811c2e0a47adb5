"""The options of ``scripts/simulate``, and which of them go together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.actors.cli.interrupts import interrupt_once
from tierlog.actors.cli.options import Json
from tierlog.actors.cli.running import fail

if TYPE_CHECKING:
    from .command import Request

_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")
_MANY = "Many seeds"
_ONE = "One seed again"

Count = Annotated[
    int | None, typer.Option("--count", min=1, help="Run so many fresh seeds.", rich_help_panel=_MANY)
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes", min=0, help="Go on for so long; default: 1 if no number is given.", rich_help_panel=_MANY
    ),
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", metavar="FIRST:COUNT", help="Run these seeds.", rich_help_panel=_MANY)
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes; default: one a core.", rich_help_panel=_MANY)
]
StopAtFirst = Annotated[
    bool, typer.Option("--stop-at-first", help="End at a violation.", rich_help_panel=_MANY)
]
Failures = Annotated[
    Path | None,
    typer.Option(
        "--failures",
        metavar="FILE",
        help="Add failing seeds, as JSON lines, when found.",
        rich_help_panel=_MANY,
    ),
]
Mutants = Annotated[
    bool,
    typer.Option(
        "--mutants",
        help="Plant known bugs, one at a time, and count which are caught.",
        rich_help_panel=_MANY,
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Replay this seed.", rich_help_panel=_ONE)]
Keep = Annotated[
    str | None,
    typer.Option(
        "--keep", metavar="STEPS", help="Only these steps of its plan, as 3,7,20-31.", rich_help_panel=_ONE
    ),
]
NoShrink = Annotated[
    bool, typer.Option("--no-shrink", help="Look for no smaller failure.", rich_help_panel=_ONE)
]
ShrinkSeconds = Annotated[
    float | None,
    typer.Option(
        "--shrink-seconds",
        min=0,
        help="Look so long for a smaller failure; default: 60.",
        rich_help_panel=_ONE,
    ),
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write the whole trace.", rich_help_panel=_ONE)
]
Operations = Annotated[
    int, typer.Option("--operations", min=1, help="Operations of the clients in each seed.")
]
SeedSeconds = Annotated[
    float, typer.Option("--seed-seconds", min=1, help="A seed that takes longer in real time is a violation.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print failing seeds only.")]


def simulate(
    count: Count = None,
    minutes: Minutes = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    stop_at_first: StopAtFirst = False,
    failures: Failures = None,
    mutants: Mutants = False,
    seed: Seed = None,
    keep: Keep = None,
    no_shrink: NoShrink = False,
    shrink_seconds: ShrinkSeconds = None,
    trace: TraceFile = None,
    operations: Operations = 200,
    seed_seconds: SeedSeconds = 120,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run whole stores in virtual time, with crashes, power losses, zombies and faults of every kind, and
    check all that they answer.

    Without options: fresh seeds for a minute on all cores, then a verdict. Each failing seed comes with the
    command that replays it. Exit code 0 if nothing was found, 1 if something was. It needs trio, which the
    extra `simulate` of tierlog installs.
    """
    many = {"--count": count, "--minutes": minutes, "--seeds": seeds, "--jobs": jobs, "--failures": failures}
    many |= {"--stop-at-first": stop_at_first or None, "--mutants": mutants or None}
    one = {
        "--keep": keep,
        "--no-shrink": no_shrink or None,
        "--shrink-seconds": shrink_seconds,
        "--trace": trace,
    }
    _check(seed, many, one)
    if find_spec("trio") is None:
        fail(
            "the simulator needs trio: install tierlog with its extra, as in pip install 'tierlog[simulate]'"
        )

    from .command import SHRINK_SECONDS, Request

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
    )
    raise typer.Exit(_carry_out(request))


def _check(seed: int | None, many: Mapping[str, object], one: Mapping[str, object]) -> None:
    """Options that would do nothing are refused, so that nobody believes they did."""
    idle = [name for name, value in (one if seed is None else many).items() if value is not None]
    if idle:
        raise typer.BadParameter(f"{idle[0]} is of use only {'with' if seed is None else 'without'} --seed")
    alone = [
        name for name in ("--stop-at-first", "--failures") if many["--mutants"] and many[name] is not None
    ]
    if alone:
        raise typer.BadParameter(
            f"{alone[0]} is of no use with --mutants, which goes on behind failing seeds and keeps them in "
            f"its table"
        )
    if many["--seeds"] is not None and many["--count"] is not None:
        raise typer.BadParameter("--seeds says how many already: leave out --count")


def _steps(text: str) -> tuple[int, ...]:
    from .shrink import parse_steps

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


def _carry_out(request: Request) -> int:
    from .command import WorkersCannotStart, run

    interrupt_once()
    try:
        return run(request)
    except WorkersCannotStart as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
