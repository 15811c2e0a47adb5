"""The mutation score: how many of the planted bugs the simulator finds, and in how many seeds.

Owns: which mutant runs which seeds, when one counts as caught, and the tally. Does not own: processes
(``child.py``), copies (``apply.py``), what is printed (``report.py``).

First the original runs some seeds. If it fails one, there is no score: a simulator that fails without a bug
proves nothing by failing with one. Then the mutants run in rounds, each with more seeds than the one before,
so that early on something is known of every mutant. A seed that fails counts only if the original passes that
very seed; otherwise it is noted, and the mutant goes on behind it.

Several mutants run at once, each on a copy of its own. Time that is over, or Ctrl-C, ends it at any moment;
what is known stays true.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import anyio
import attrs

from .apply import PackageCopy
from .child import Command, Finding, Outcome, Slice, run_child, simulator
from .mutant import Mutant, UnsoundMutant

GOAL = 0.95
ROUNDS = (10, 40, 150, 500)
"""Seeds of the first rounds; the last one takes the rest."""


class Fate(StrEnum):
    WAITING = "waiting"
    CAUGHT = "caught"
    SURVIVED = "survived"
    BROKEN = "broken"


@attrs.frozen
class Terms:
    """What a score is about."""

    mutants: Sequence[Mutant]
    first: int = 0
    """The first seed."""
    seeds: int = 2000
    """For each mutant."""
    seconds: float | None = None
    """For all of it; None: no end but that of the seeds."""
    original_seeds: int = 50
    jobs: int = 1
    operations: int = 200
    command: Command = simulator
    source: Path | None = None
    """The package to copy; None: the one that runs."""


@attrs.define
class Result:
    """What is known of one mutant."""

    mutant: Mutant
    fate: Fate = Fate.WAITING
    seeds: int = 0
    """Run so far; of a caught one, those it took."""
    seed: int | None = None
    text: str = ""
    """The violation, or what a broken one said."""
    seconds: float = 0.0

    @property
    def first_line(self) -> str:
        return self.text.split("\n", 1)[0]


@attrs.define
class Score:
    results: list[Result]
    original: Outcome | None = None
    """How the original did in its seeds; None: not known yet."""
    original_fails: dict[int, str] = attrs.Factory(dict)
    """Seeds that failed a mutant and the original too, and how: each is a finding about the original."""
    interrupted: bool = False

    def count(self, fate: Fate) -> int:
        return sum(result.fate is fate for result in self.results)

    @property
    def share(self) -> float:
        """Caught of all: one that is broken or was not run to its end is not caught."""
        return self.count(Fate.CAUGHT) / len(self.results) if self.results else 0.0

    @property
    def is_meaningful(self) -> bool:
        return self.original is not None and self.original.finding is Finding.NOTHING

    @property
    def is_reached(self) -> bool:
        return self.is_meaningful and self.share >= GOAL


Heard = Callable[[Score, Result | None], None]
"""Told whenever more is known; of which mutant, or None of the original."""


def run_score(terms: Terms, heard: Heard) -> Score:
    """Run all of it; Ctrl-C ends it, and the score so far says that it was interrupted."""
    score = Score([Result(mutant) for mutant in terms.mutants])
    try:
        with tempfile.TemporaryDirectory(prefix="tierlog-mutants-") as folder:
            anyio.run(_Scoring(terms, score, heard, Path(folder)).run)
    except KeyboardInterrupt:
        score.interrupted = True
    return score


class _Scoring:
    def __init__(self, terms: Terms, score: Score, heard: Heard, folder: Path) -> None:
        self._terms = terms
        self._score = score
        self._heard = heard
        self._folder = folder
        self._original = PackageCopy(folder / "original", terms.source)
        self._end: float | None = None
        self._verdicts: dict[int, Outcome] = {}
        """Of the original, by seed."""

    async def run(self) -> None:
        if self._terms.seconds is not None:
            self._end = anyio.current_time() + self._terms.seconds
        terms, score = self._terms, self._score
        score.original = await self._child(
            self._original, Slice(terms.first, terms.original_seeds, self._left(), terms.operations)
        )
        self._heard(score, None)
        if not score.is_meaningful:
            return

        copies = [PackageCopy(self._folder / f"copy-{number}", terms.source) for number in range(terms.jobs)]
        for wanted in _rounds(terms.seeds):
            pending = iter([result for result in score.results if result.fate is Fate.WAITING])
            async with anyio.create_task_group() as tasks:
                for copy in copies:
                    tasks.start_soon(self._work, copy, pending, wanted)

    async def _work(self, copy: PackageCopy, pending: Iterator[Result], wanted: int) -> None:
        for result in pending:
            if self._left() == 0:
                return
            begin = anyio.current_time()
            await self._go_on(copy, result, wanted)
            result.seconds += anyio.current_time() - begin
            self._heard(self._score, result)

    async def _go_on(self, copy: PackageCopy, result: Result, wanted: int) -> None:
        """Until ``wanted`` seeds have run in all, or its fate is known."""
        try:
            with copy.planted(result.mutant):
                while result.fate is Fate.WAITING and result.seeds < wanted and self._left() != 0:
                    first = self._terms.first + result.seeds
                    part = Slice(first, wanted - result.seeds, self._left(), self._terms.operations)
                    await self._take(result, await self._child(copy, part))
        except UnsoundMutant as error:
            result.fate, result.text = Fate.BROKEN, str(error)
        if result.fate is Fate.WAITING and result.seeds >= self._terms.seeds:
            result.fate = Fate.SURVIVED

    async def _take(self, result: Result, outcome: Outcome) -> None:
        result.seeds += outcome.seeds_run
        if outcome.finding is Finding.BROKEN or (
            outcome.finding is Finding.NOTHING and not outcome.seeds_run and self._left() != 0
        ):
            result.fate, result.text = Fate.BROKEN, outcome.text or "it ran no seed"
        elif outcome.seed is not None and await self._passes(outcome.seed):
            result.fate, result.seed, result.text = Fate.CAUGHT, outcome.seed, outcome.text

    async def _passes(self, seed: int) -> bool:
        """Whether the original passes the seed: only then a failure is the mutant's."""
        if seed not in self._verdicts:
            self._verdicts[seed] = await self._child(
                self._original, Slice(seed, 1, None, self._terms.operations)
            )
        verdict = self._verdicts[seed]
        if verdict.finding is not Finding.NOTHING:
            self._score.original_fails[seed] = verdict.text.split("\n", 1)[0]
        return verdict.finding is Finding.NOTHING

    async def _child(self, copy: PackageCopy, part: Slice) -> Outcome:
        return await run_child(self._terms.command, copy.package, part)

    def _left(self) -> float | None:
        """Seconds; None: no limit."""
        return None if self._end is None else max(0.0, self._end - anyio.current_time())


def _rounds(seeds: int) -> list[int]:
    return [*(count for count in ROUNDS if count < seeds), seeds]
