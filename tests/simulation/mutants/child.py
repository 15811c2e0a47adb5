"""One run of the simulator over some seeds, in a process of its own, on a copy of the package.

Owns: the command, its environment, what its output and its end mean, and that the process is gone whatever
happens. Does not own: which copy, which seeds, or what is made of the findings (``score.py``).

The child makes sure that it imports the copy and not an installed package before it runs anything. It is the
head of a process group, which is killed when the child's time is over and on cancellation, so that no worker
process outlives it. A child that ends by itself has ended its workers. What it writes to temporary folders
goes with the copy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import anyio
import anyio.abc
import attrs

GRACE_SECONDS = 300.0
"""Beyond its own limit of time: a child that is still there then is stuck outside any seed."""
SEED_SECONDS = 60
_LAST_CHARACTERS = 2000

_START = """\
import runpy, sys
from pathlib import Path

wanted = Path(sys.argv[1])
import tierlog

found = Path(tierlog.__file__).resolve().parent
if found != wanted:
    sys.exit(f"the child imported {found}, not the copy {wanted}")
sys.argv[:] = ["simulate", *sys.argv[2:]]
runpy.run_module("simulation", run_name="__main__", alter_sys=True)
"""


class Finding(StrEnum):
    NOTHING = "nothing"
    VIOLATION = "violation"
    BROKEN = "broken"
    """The program did not do what it was asked: this says nothing about the mutant."""


@attrs.frozen
class Slice:
    """Seeds to run, and for how long."""

    first: int
    count: int
    seconds: float | None = None
    operations: int = 200


@attrs.frozen
class Outcome:
    finding: Finding
    seeds_run: int = 0
    seed: int | None = None
    """The one that failed."""
    text: str = ""
    """The violation, or what the broken child said."""


Command = Callable[[Path, Slice], Sequence[str]]
"""The program and arguments that run a slice on the package in a folder."""


def simulator(package: Path, slice_: Slice) -> Sequence[str]:
    """The simulator, with the contract that ``read_outcome`` relies on."""
    seeds = f"{slice_.first}:{slice_.count}"
    options = [
        "--seeds",
        seeds,
        "--operations",
        str(slice_.operations),
        "--seed-seconds",
        str(SEED_SECONDS),
        "--jobs",
        "1",
    ]
    if slice_.seconds is not None:
        options += ["--minutes", str(slice_.seconds / 60)]
    return [
        sys.executable,
        "-c",
        _START,
        str(package.resolve()),
        *options,
        "--stop-at-first",
        "--quiet",
        "--json",
    ]


def read_outcome(code: int | None, output: str, errors: str) -> Outcome:
    """Exit code 0 or 1 and a last line of JSON with ``seed``, ``seeds_run`` and ``violation``; anything else
    is broken."""
    lines = output.strip().splitlines()
    with suppress(ValueError, TypeError, KeyError):
        said = json.loads(lines[-1]) if lines else {}
        if code == 0:
            return Outcome(Finding.NOTHING, int(said["seeds_run"]))
        if code == 1:
            return Outcome(
                Finding.VIOLATION, int(said["seeds_run"]), int(said["seed"]), str(said["violation"])
            )
    told = (errors.strip() or output.strip() or "it said nothing")[-_LAST_CHARACTERS:]
    return Outcome(Finding.BROKEN, text=f"exit code {code}: {told}")


async def run_child(
    command: Command, package: Path, slice_: Slice, *, grace: float = GRACE_SECONDS
) -> Outcome:
    """Run the slice and tell what came of it. Cancelled: the child and all that it started are killed."""
    limit = None if slice_.seconds is None else slice_.seconds + grace
    process = await anyio.open_process(
        command(package, slice_),
        stdin=subprocess.DEVNULL,
        cwd=package.parent,
        env=_environment(package),
        start_new_session=True,
    )
    output: list[bytes] = []
    errors: list[bytes] = []
    try:
        with anyio.move_on_after(limit) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_collect, process.stdout, output)
                tasks.start_soon(_collect, process.stderr, errors)
            await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                _end_group(process.pid)
            await process.aclose()
    if scope.cancelled_caught:
        return Outcome(Finding.BROKEN, text=f"it did not end within {limit:g} s")
    return read_outcome(process.returncode, _text(output), _text(errors))


def _environment(package: Path) -> dict[str, str]:
    """As here, but for what decides which package is imported and what is written beside it."""
    folder = str(package.resolve().parent)
    others = os.environ.get("PYTHONPATH")
    path = f"{folder}{os.pathsep}{others}" if others else folder
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder}


async def _collect(stream: anyio.abc.ByteReceiveStream | None, into: list[bytes]) -> None:
    assert stream is not None
    into.extend([piece async for piece in stream])


def _text(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", "replace")


def _end_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
