"""A seed is the same world every time: in another process, with other hashes, after other seeds."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

import pytest
import simulation
from simulation.planner import make_plan
from simulation.run import run_seed
from simulation.sessions.world import FIRST_WITH_SESSIONS
from simulation.settings import WalKind
from simulation.special_seeds import FIRST_IN_BUCKET, FIRST_ON_LEDGERS
from simulation.supervised import FIRST_SUPERVISED

SEEDS = (4, 5, FIRST_IN_BUCKET, FIRST_ON_LEDGERS + 1)
"""One of each kind of log."""
WORLDS = (*SEEDS, FIRST_SUPERVISED, FIRST_SUPERVISED + 2, FIRST_WITH_SESSIONS)
"""And supervisors, in a bucket and in a folder, and clients with sessions."""
OPERATIONS = 40
BEFORE = 12
"""Lines shown before the first difference."""

SOURCES = Path(simulation.__file__).parent
STARTERS = {"campaign.py", "replay.py", "report.py", "workers.py"}
"""They start simulations, and are not part of one."""
OF_THE_MACHINE = {
    "asyncio",
    "datetime",
    "multiprocessing",
    "os",
    "secrets",
    "socket",
    "tempfile",
    "threading",
    "time",
    "uuid",
}

PROGRAM = """
import sys
from pathlib import Path
from simulation.run import run_seed
folder, operations, *seeds = sys.argv[1:]
for seed in seeds:
    verdict = run_seed(int(seed), operations=int(operations), full_trace=True)
    lines = [*verdict.trace, verdict.digest, str(verdict.violation), str(sorted(verdict.counts.items()))]
    (Path(folder) / seed).write_text("\\n".join(lines))
"""


def test_the_seeds_have_every_kind_of_log() -> None:
    assert {make_plan(seed).site.wal for seed in SEEDS} == set(WalKind)


def write_traces(folder: Path, operations: int, seeds: Iterable[int], hash_seed: int) -> None:
    folder.mkdir()
    words = [sys.executable, "-c", PROGRAM, str(folder), str(operations), *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def first_difference(first: list[str], second: list[str]) -> str | None:
    """Where two traces part, with what went before; None if they do not."""
    for at, (one, other) in enumerate(zip_longest(first, second, fillvalue="(the trace ends)")):
        if one != other:
            return "\n".join(
                [
                    *first[max(0, at - BEFORE) : at],
                    f"line {at + 1}, once:  {one}",
                    f"line {at + 1}, again: {other}",
                ]
            )
    return None


@pytest.mark.extended
@pytest.mark.parametrize("operations", [OPERATIONS, 120])
def test_every_line_of_the_trace_is_the_same_in_another_process(tmp_path: Path, operations: int) -> None:
    """With other hashes of strings, and with other seeds run before in the same process."""
    write_traces(tmp_path / "once", operations, WORLDS, hash_seed=1)
    write_traces(tmp_path / "again", operations, reversed(WORLDS), hash_seed=2)

    for seed in WORLDS:
        first, second = ((tmp_path / run / str(seed)).read_text().split("\n") for run in ("once", "again"))
        assert len(first) > operations
        assert (difference := first_difference(first, second)) is None, (
            f"seed {seed} is two worlds:\n{difference}"
        )


def test_the_first_difference_is_shown_with_the_lines_before_it() -> None:
    assert first_difference(["a", "b", "c"], ["a", "b", "d"]) == "a\nb\nline 3, once:  c\nline 3, again: d"
    assert first_difference(["a"], ["a", "b"]) == "a\nline 2, once:  (the trace ends)\nline 2, again: b"
    assert first_difference(["a"], ["a"]) is None


def test_keeping_all_steps_changes_nothing() -> None:
    seed = SEEDS[0]
    whole = run_seed(seed, operations=OPERATIONS)

    assert run_seed(seed, operations=OPERATIONS, keep=whole.steps).digest == whole.digest


def test_the_digest_distinguishes_seeds() -> None:
    assert len({run_seed(seed, operations=OPERATIONS).digest for seed in (*SEEDS, 13)}) == 5


def imported(module: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            # Of `random`, only the class that is given a seed.
            found |= (
                {str(node.module).split(".")[0]}
                if node.module != "random"
                else {alias.name for alias in node.names}
            )
    return found


def test_nothing_in_a_simulation_reads_the_real_machine() -> None:
    modules = {path.name: imported(path) for path in SOURCES.glob("*.py") if path.name not in STARTERS}

    assert "Random" in modules["planner.py"]
    assert {
        name: bad for name, found in modules.items() if (bad := found & (OF_THE_MACHINE | {"random"}))
    } == {}
