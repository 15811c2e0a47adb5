"""Planted bugs: they break what they name, leave no trace, and are counted only if the product is sound."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from simulation.mutants import score
from simulation.mutants.catalogue import CATALOGUE
from simulation.mutants.planting import Mutant, Planter
from simulation.mutants.score import INTERRUPTED, NOT_REACHED, REACHED, ScoreOptions, show_score
from simulation.run import run_seed
from simulation.verdict import Verdict

from support.fake_seeds import run_fake
from tierlog.actors.gc import rules

SegmentView = Callable[..., tuple[int, list[str]]]
IGNORES = CATALOGUE["references-are-ignored"]
HARMLESS = CATALOGUE["lease-ends-early"]
FAILS_ALWAYS, ORPHAN = 103, [("containers/0000/1/1-0-1", 1)]


def run_collecting(seed: int, **options: Any) -> Verdict:
    """Fails if the collector takes what is referenced; one seed fails anyway."""
    verdict = run_fake(seed, **options)
    taken = rules.orphans(ORPHAN, epoch=2, referenced=[name for name, _ in ORPHAN])
    return attrs.evolve(verdict, violation=f"Broken: {taken}" if taken or seed == FAILS_ALWAYS else None)


@pytest.fixture
def shown(capfd: pytest.CaptureFixture[str]) -> SegmentView:
    """A score of some mutants: exit code and lines."""

    def show(
        *mutants: Mutant, first: int = 100, seeds: int = 8, as_json: bool = False
    ) -> tuple[int, list[str]]:
        options = ScoreOptions(mutants, first, seeds, seconds=None, jobs=1, runner=run_collecting)
        code = show_score(options, as_json=as_json)
        return code, capfd.readouterr().out.splitlines()

    return show


def test_every_mutant_names_its_rule_and_describes_its_effect() -> None:
    assert len(CATALOGUE) >= 50
    for mutant in CATALOGUE.values():
        assert re.fullmatch(r"[AWCSFGTJMRPKLDVBNH]\d+(, [AWCSFGTJMRPKLDVBNH]\d+)*", mutant.rule)
        assert re.fullmatch(r"[A-Z].*\.", mutant.story)


def test_each_mutant_stands_for_a_rule_of_its_own() -> None:
    """C1 has five, for appends, reads, wake-ups, rows of tables and groups under way, C3 two, for appends and
    for updates of tables, C7 two, for what a checkpoint holds and for when one is due, F1 two, for what
    is flushed and for its image, F10 four, for what is late, what is merged, other rows and transactions,
    G6 two, for all deletions and for those on a full storage, J6 two, for elements and for versions of
    another history, M19 two, for lookups and for what is left over, M20 two, for writers and for expired
    ones, P6 two, for numbers and for a restore that was killed, P7 four, for what was not verified, what
    is replaced, what the record says and what is read again, P8 two, for other histories and for the same
    one, S21 two, for layouts and for views, D1 two, for an own record and for one of equal bytes, V1
    three, for hosts, for openings and for a take-over: a different checker sees each. L2 has two, for a
    put and for the order of acks, L7 five, for what is left over, for groups and fences that are deleted,
    when, and where readers begin, D4 three, for each clock and for when it is read first. N3 has two, for
    answers and for bodies, N5 two, for its client and its server, N6 seven, for what is sent, kept, heard and
    left. H22 has two, for answers that are lost and for shares."""
    rules = Counter(rule for mutant in CATALOGUE.values() for rule in mutant.rule.split(", "))

    several = {rule: count for rule, count in rules.items() if count > 1}
    assert several == {
        "C1": 5,
        "C3": 2,
        "C7": 2,
        "D1": 2,
        "D4": 3,
        "F1": 2,
        "F10": 4,
        "G2": 3,
        "G6": 2,
        "H22": 2,
        "J6": 2,
        "L2": 2,
        "L7": 5,
        "M19": 2,
        "M20": 2,
        "N3": 2,
        "N5": 2,
        "N6": 7,
        "P6": 2,
        "P7": 4,
        "P8": 2,
        "S21": 2,
        "V1": 3,
    }
    counts = f"{len(CATALOGUE)} bugs for {len(rules)} of"
    assert counts in " ".join((Path(__file__).parents[2] / "docs" / "TESTING.md").read_text().split())


@pytest.mark.parametrize("mutant", CATALOGUE.values(), ids=CATALOGUE)
def test_a_mutant_changes_code_and_puts_it_back(mutant: Mutant) -> None:
    functions: list[Any] = []
    mutant.plant(lambda function, broken: functions.append(function))  # type: ignore[arg-type]
    before = [function.__code__ for function in functions]

    with mutant.planted():
        assert all(f.__code__ is not code for f, code in zip(functions, before, strict=True))

    assert functions
    assert [function.__code__ for function in functions] == before


def test_every_reference_to_a_replaced_function_is_broken() -> None:
    held_before = partial(rules.orphans, ORPHAN, epoch=2, referenced=[ORPHAN[0][0]])
    with IGNORES.planted():
        assert held_before() == [ORPHAN[0][0]]

    assert held_before() == []


def test_only_plain_functions_can_be_replaced() -> None:
    with ExitStack() as stack, pytest.raises(TypeError, match="not a plain function"):
        Planter(stack)(len, lambda original, sized: 0)


def test_a_caught_mutant_is_printed_with_its_seed_and_violation(shown: SegmentView) -> None:
    code, lines = shown(IGNORES)

    assert code == REACHED
    assert lines[0].split()[:4] == ["G1", "references-are-ignored", "1", "seeds"]
    assert "Broken: ['containers/0000/1/1-0-1']" in lines[0]
    assert lines[-1] == "1 of 1 planted bugs caught: 100.0% (the goal is 95%)"


def test_a_seed_that_fails_without_a_bug_catches_nothing(shown: SegmentView) -> None:
    code, lines = shown(HARMLESS)

    assert code == NOT_REACHED
    assert "NOT CAUGHT: A transaction is aborted before the time" in lines[0]
    assert f"seed {FAILS_ALWAYS} fails without a bug: Broken: []" in lines
    assert lines[-1] == "0 of 1 planted bugs caught: 0.0% (the goal is 95%)"


def test_json_is_a_line_for_each_mutant_and_one_for_all(shown: SegmentView) -> None:
    code, lines = shown(IGNORES, HARMLESS, first=200, as_json=True)
    caught, survived, summary = map(json.loads, lines)

    assert code == NOT_REACHED
    assert (caught["mutant"], caught["caught"], caught["seed"], caught["seeds"]) == (
        IGNORES.name,
        True,
        200,
        1,
    )
    assert (survived["caught"], survived["seed"], survived["seeds"]) == (False, None, 8)
    assert summary == {
        "score": 0.5,
        "goal": 0.95,
        "caught": 1,
        "mutants": 2,
        "fails_without_a_bug": {},
        "interrupted": False,
    }


def test_ctrl_c_ends_it_with_what_is_known(shown: SegmentView, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(score, "_run", interrupt)
    code, lines = shown(IGNORES)

    assert code == INTERRUPTED
    assert lines == ["interrupted; until then:", "0 of 1 planted bugs caught: 0.0% (the goal is 95%)"]


@pytest.mark.parametrize(
    "name",
    [
        "append-is-answered-before-the-log",
        "repeats-are-applied",
        pytest.param("zombie-answers-reads", marks=pytest.mark.extended),
    ],
)
def test_the_simulator_catches_a_mutant_in_a_few_seeds(name: str) -> None:
    with CATALOGUE[name].planted():
        assert any(run_seed(seed).violation for seed in range(10, 30))
