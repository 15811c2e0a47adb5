"""The command line that the chaos scripts share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from random import SystemRandom

import attrs


@attrs.frozen(kw_only=True)
class Options:
    rounds: int
    seed: int
    hosts: int
    containers: int
    writers: int = 0
    pace: float = 0.0
    tail: int = 0
    client: str = "tierlog"
    plain: bool = True
    """Whether there are lanes without event numbers."""
    json: bool
    goals: bool = False
    keep: Path | None
    patience: float
    url: str | None = None
    pids_from: Path | None = None


def parser(
    script: str, text: str, *, attach: bool, rounds: int, crew: bool = True
) -> argparse.ArgumentParser:
    """``attach``: whether the script can work on a service that it did not start. ``crew``: whether it has
    the common writers."""
    made = argparse.ArgumentParser(
        prog=f"scripts/chaos_{script}.py",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "--rounds",
        type=count(1, 100_000),
        default=rounds,
        metavar="N",
        help=f"how often it is broken (default: {rounds})",
    )
    add(
        "--seed",
        type=count(0, 1 << 63),
        metavar="S",
        help="of what is done and when (default: another one each time; the verdict says it)",
    )
    add("--hosts", type=count(1, 64), default=2, metavar="N", help="host processes (default: 2)")
    add("--containers", type=count(1, 256), default=4, metavar="N", help="segment containers (default: 4)")
    if crew:
        _add_crew(add)
    add(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="a new folder for the data and the log, kept afterwards (default: a temporary one, kept if it "
        "broke)",
    )
    add(
        "--patience",
        type=seconds,
        default=30,
        metavar="SECONDS",
        help="how long the service may take to settle (default: 30)",
    )
    add("--json", action="store_true", help="the verdict as one JSON document")
    if attach:
        add(
            "--url",
            metavar="URL",
            help="attach to the service of this supervisor, on this machine, instead of starting one",
        )
        add(
            "--pids-from",
            type=Path,
            metavar="FILE",
            help="with --url: lines of a host's name and its process id, read anew in each round (default: "
            "as its status says)",
        )
    return made


def _add_crew(add: Callable[..., object]) -> None:
    add(
        "--writers",
        type=count(1, 64),
        default=2,
        metavar="N",
        help="writer processes; each has a lane in every container (default: 2)",
    )
    add(
        "--pace",
        type=seconds,
        default=0.01,
        metavar="SECONDS",
        help="mean pause between two calls of a lane (default: 0.01)",
    )
    add(
        "--tail",
        type=count(0, 1_000_000),
        default=0,
        metavar="N",
        help="operations added to each container's log before each round (default: 0)",
    )
    add(
        "--client",
        choices=("tierlog", "raw"),
        default="tierlog",
        help="what the writers use: tierlog.connect, or plain HTTP requests",
    )
    add("--goals", action="store_true", help="a figure that misses its goal breaks the verdict too")


def options_of(made: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parsed and checked."""
    given = made.parse_args(arguments)
    if given.seed is None:
        given.seed = SystemRandom().randrange(1 << 32)
    if getattr(given, "pids_from", None) is not None and given.url is None:
        made.error("--pids-from needs --url: of a service that is started here all processes are known")
    if given.keep is not None:
        given.keep = given.keep.absolute()
        if given.keep.exists() and any(given.keep.iterdir()):
            made.error(f"--keep: {given.keep} is not empty")
    return given


def count(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return number


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 60:
        raise argparse.ArgumentTypeError(f"seconds from 0 to 60, not {text!r}")
    return value
