"""The mutation score: planting and taking out, one child, and what many of them come to. The children are
fakes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import attrs
import pytest
from simulation.mutants import child, report
from simulation.mutants.apply import PackageCopy, installed
from simulation.mutants.child import Finding, Outcome, Slice, read_outcome, run_child
from simulation.mutants.mutant import Mutant, UnsoundMutant
from simulation.mutants.score import Fate, Result, Score, Terms, run_score

import tierlog
from support.fake_simulator import (
    ENDS_ODDLY,
    HANGS,
    HARMLESS,
    LOST,
    SAYS_NOTHING,
    SOUND,
    failing_at,
    fake_simulator,
    make_package,
)

REAL = Path(tierlog.__file__).parent


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return make_package(tmp_path / "package")


def terms(package: Path, *mutants: Mutant, seeds: int = 20) -> Terms:
    return Terms(
        mutants, first=100, seeds=seeds, original_seeds=5, jobs=2, command=fake_simulator, source=package
    )


def scored(wanted: Terms) -> Score:
    return run_score(wanted, lambda score, result: None)


def result_of(score: Score) -> Result:
    (result,) = score.results
    return result


# --- the copy -----------------------------------------------------------------------------------


def test_the_copy_is_the_package_without_tests_and_tools(tmp_path: Path) -> None:
    copy = PackageCopy(tmp_path)
    there = {str(path.relative_to(copy.package)) for path in copy.package.rglob("*.py")}

    assert installed() == REAL
    assert {"__init__.py", "actors/store/store.py", "tests/simulation/run.py"} <= there
    assert not [name for name in there if name.split("/")[0] in {"tests", "scripts", "benchmarks", "docs"}]


def test_a_bug_is_in_the_copy_only_while_it_is_planted(tmp_path: Path, package: Path) -> None:
    copy = PackageCopy(tmp_path, package)
    with copy.planted(failing_at(1)):
        planted = (copy.package / "fate.py").read_text(encoding="utf-8")

    assert "(1,)" in planted
    assert (copy.package / "fate.py").read_text(encoding="utf-8") == SOUND
    assert (package / "fate.py").read_text(encoding="utf-8") == SOUND


def test_a_bug_is_taken_out_when_a_run_fails(tmp_path: Path, package: Path) -> None:
    copy = PackageCopy(tmp_path, package)
    with pytest.raises(KeyboardInterrupt), copy.planted(failing_at(1)):
        raise KeyboardInterrupt

    assert (copy.package / "fate.py").read_text(encoding="utf-8") == SOUND


def test_a_bug_that_cannot_be_planted_changes_nothing(tmp_path: Path, package: Path) -> None:
    copy = PackageCopy(tmp_path, package)
    with pytest.raises(UnsoundMutant), copy.planted(LOST):
        pytest.fail("it was planted")

    assert (copy.package / "fate.py").read_text(encoding="utf-8") == SOUND


# --- one child ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code, output, finding",
    [
        (0, '{"seed": null, "seeds_run": 7, "violation": null}', Finding.NOTHING),
        (1, 'news\n{"seed": 5, "seeds_run": 7, "violation": "Broken: x"}\n', Finding.VIOLATION),
        (1, '{"seeds_run": 7}', Finding.BROKEN),
        (1, "Traceback", Finding.BROKEN),
        (1, "[]", Finding.BROKEN),
        (0, "", Finding.BROKEN),
        (2, '{"seed": 5, "seeds_run": 7, "violation": "Broken: x"}', Finding.BROKEN),
        (-9, "", Finding.BROKEN),
    ],
)
def test_only_a_child_that_keeps_to_the_contract_says_anything_about_a_bug(
    code: int, output: str, finding: Finding
) -> None:
    assert read_outcome(code, output, "").finding is finding


def test_a_broken_child_is_quoted() -> None:
    assert read_outcome(2, "", "no module named trio").text == "exit code 2: no module named trio"


@pytest.mark.anyio
async def test_a_child_past_its_time_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    package = make_package(tmp_path / "package")
    note = tmp_path / "grandchild"
    program = f"""\
import pathlib, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(note)!r}).write_text(str(worker.pid))
time.sleep(600)
"""

    def command(package: Path, part: Slice) -> Sequence[str]:
        return [sys.executable, "-c", program]

    outcome = await run_child(command, package, Slice(0, 1, seconds=1.0), grace=1.0)

    assert outcome == Outcome(Finding.BROKEN, text="it did not end within 2 s")
    with anyio.fail_after(10):
        while _is_alive(int(note.read_text(encoding="utf-8"))):
            await anyio.lowlevel.checkpoint()


def _is_alive(process: int) -> bool:
    """A killed process whose new parent has not asked after it yet counts as dead."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _probe(program: str) -> child.Command:
    """The real start of a child, with ``program`` where the simulator would be."""

    def command(package: Path, part: Slice) -> Sequence[str]:
        arguments = list(child.simulator(package, part))
        assert arguments[1] == "-c"
        start, simulator, _ = arguments[2].partition("runpy.run_module")
        assert simulator
        return [arguments[0], "-c", start + program, *arguments[3:]]

    return command


@pytest.mark.anyio
async def test_the_child_imports_the_copy_though_another_package_is_installed(tmp_path: Path) -> None:
    copy = PackageCopy(tmp_path)
    said = (
        'import json; print(json.dumps({"seed": None, "seeds_run": 1, "violation": None, "argv": sys.argv}))'
    )

    outcome = await run_child(_probe(said), copy.package, Slice(7, 1))

    assert outcome == Outcome(Finding.NOTHING, 1)


@pytest.mark.anyio
async def test_a_child_that_would_import_the_installed_package_refuses_to_run(tmp_path: Path) -> None:
    somewhere = tmp_path / "tierlog"
    (tmp_path / "other").mkdir()

    def elsewhere(package: Path, part: Slice) -> Sequence[str]:
        return child.simulator(tmp_path / "other" / "tierlog", part)

    make_package(somewhere)
    (somewhere / "__init__.py").write_text("", encoding="utf-8")
    outcome = await run_child(elsewhere, somewhere, Slice(7, 1))

    assert outcome.finding is Finding.BROKEN
    assert "not the copy" in outcome.text


@pytest.mark.long
@pytest.mark.anyio
async def test_the_real_simulator_keeps_to_the_contract(tmp_path: Path) -> None:
    copy = PackageCopy(tmp_path)

    outcome = await run_child(child.simulator, copy.package, Slice(7, 1, operations=5))

    assert outcome == Outcome(Finding.NOTHING, 1)


# --- the score ----------------------------------------------------------------------------------


def test_a_bug_is_caught_by_the_first_seed_that_fails(package: Path) -> None:
    result = result_of(scored(terms(package, failing_at(103, 104))))

    assert (result.fate, result.seeds, result.seed) == (Fate.CAUGHT, 4, 103)
    assert result.first_line == "Broken: seed 103"


def test_a_bug_that_only_a_late_round_finds_is_caught_with_all_its_seeds(package: Path) -> None:
    result = result_of(scored(terms(package, failing_at(117))))

    assert (result.fate, result.seeds, result.seed) == (Fate.CAUGHT, 18, 117)


def test_a_bug_that_no_seed_finds_survives(package: Path) -> None:
    result = result_of(scored(terms(package, HARMLESS)))

    assert (result.fate, result.seeds) == (Fate.SURVIVED, 20)


@pytest.mark.parametrize("odd", [ENDS_ODDLY, SAYS_NOTHING, LOST], ids=lambda mutant: mutant.name)
def test_what_cannot_be_run_is_broken_and_not_caught(package: Path, odd: Mutant) -> None:
    score = scored(terms(package, odd))

    assert result_of(score).fate is Fate.BROKEN
    assert score.share == 0


def test_a_seed_that_the_original_fails_too_does_not_catch_a_bug(tmp_path: Path) -> None:
    """The original fails at 110, which is not among its first seeds."""
    package = make_package(tmp_path / "package", SOUND.replace("FAILS = ()", "FAILS = () + (110,)"))

    score = scored(terms(package, HARMLESS, failing_at(112)))

    harmless, caught = score.results
    assert (harmless.fate, harmless.seeds) == (Fate.SURVIVED, 20)
    assert (caught.fate, caught.seed, caught.seeds) == (Fate.CAUGHT, 112, 13)
    assert score.original_fails == {110: "Broken: seed 110"}


def test_without_an_original_that_passes_there_is_no_score(tmp_path: Path) -> None:
    package = make_package(tmp_path / "package", SOUND.replace("FAILS = ()", "FAILS = (102,)"))

    score = scored(terms(package, failing_at(103)))

    assert not score.is_meaningful
    assert not score.is_reached
    assert result_of(score).fate is Fate.WAITING


def test_the_goal_is_a_share_of_all_bugs(package: Path) -> None:
    mutants = [attrs.evolve(failing_at(100), name=f"m{number}") for number in range(19)]

    assert scored(terms(package, *mutants, HARMLESS)).is_reached
    assert not scored(terms(package, *mutants[:18], HARMLESS)).is_reached


def test_a_child_that_hangs_is_ended_at_its_time_and_broken(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child.run_child, "__kwdefaults__", {"grace": 0.2})

    score = scored(attrs.evolve(terms(package, HANGS), seconds=2.0))

    assert result_of(score).fate is Fate.BROKEN
    assert "did not end" in result_of(score).text


def test_when_time_is_over_what_did_not_begin_is_still_open(package: Path) -> None:
    score = scored(attrs.evolve(terms(package, HARMLESS), seconds=0.001))

    assert result_of(score).fate is Fate.WAITING
    assert not score.is_reached


def test_ctrl_c_leaves_what_is_known(package: Path) -> None:
    def heard(score: Score, result: Result | None) -> None:
        if result is not None:
            os.kill(os.getpid(), signal.SIGINT)

    wanted = attrs.evolve(terms(package, failing_at(100), HANGS), jobs=1)
    score = run_score(wanted, heard)

    assert score.interrupted
    assert [result.fate for result in score.results] == [Fate.CAUGHT, Fate.WAITING]


# --- what is shown ------------------------------------------------------------------------------


def test_the_table_says_how_each_bug_was_found_and_the_share(
    package: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = terms(package, failing_at(103), HARMLESS)
    code = report.show_score(wanted)

    shown, progress = capfd.readouterr()
    assert code == report.NOT_REACHED
    assert "caught        4" in shown
    assert "Broken: seed 103" in shown
    assert HARMLESS.story in shown
    assert "1 of 2 planted bugs caught: 50.0% (the goal is 95%)" in shown
    [first, second] = progress.splitlines()
    assert first.startswith("1 of 2: ")
    assert first.endswith(" caught, 4 seeds")
    assert second == f"2 of 2: {HARMLESS.name} survived, {wanted.seeds} seeds"


def test_the_exit_code_is_0_when_the_goal_is_reached(
    package: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert report.show_score(terms(package, failing_at(103)), quiet=True) == report.REACHED
    shown, progress = capfd.readouterr()
    assert "1 of 1 planted bugs caught" in shown
    assert not progress


def test_json_has_a_line_for_each_bug_and_one_for_the_score(
    package: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report.show_score(terms(package, failing_at(103), HARMLESS), as_json=True)

    first, second, last = map(json.loads, capfd.readouterr().out.splitlines())
    assert (first["fate"], first["seed"], second["fate"]) == ("caught", 103, "survived")
    assert (last["score"], last["caught"], last["original_passes"]) == (0.5, 1, True)


def test_an_original_that_fails_is_told_with_its_seed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = make_package(tmp_path / "package", SOUND.replace("FAILS = ()", "FAILS = (102,)"))

    assert report.show_score(terms(package, HARMLESS)) == report.NOT_REACHED
    assert "no score: seed 102 fails without a bug (Broken: seed 102)" in capfd.readouterr().out


def test_an_interrupted_score_has_its_own_exit_code(
    package: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(wanted: Terms, heard: object) -> Score:
        return Score([Result(HARMLESS)], Outcome(Finding.NOTHING, 5), interrupted=True)

    monkeypatch.setattr(report, "run_score", interrupted)

    assert report.show_score(terms(package, HARMLESS)) == report.INTERRUPTED
    assert "interrupted; until then:" in capfd.readouterr().out
