"""``scripts/simulate``: its options, its output for people and programs, and its exit codes."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from simulation import command
from simulation.__main__ import main
from simulation.command import Request, run
from simulation.fleets import show
from simulation.fleets.hosts import Violation
from simulation.fleets.scenario import COLD_START, Report
from simulation.fleets.world import Episode, Size
from simulation.mutants.score import ScoreOptions
from simulation.report import COMMAND_VARIABLE
from simulation.shrink import parse_steps
from simulation.verdict import Verdict
from simulation.workers import Job, WorkerPool

from support.fake_seeds import BREAKING, FAILING, NEEDED, STEPS, run_fake

Simulate = Callable[..., tuple[int, str, str]]
CLEAN = (100, 4)
WITH_FAILURES = (FAILING - 1, 6)
"""One fails, one breaks the simulator."""


@pytest.fixture
def simulate(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """A request carried out with runs that simulate nothing: exit code, stdout, stderr."""
    monkeypatch.setenv(COMMAND_VARIABLE, "scripts/simulate")

    def call(**options: Any) -> tuple[int, str, str]:
        code = run(Request(jobs=1, **options), run_fake)
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Request]:
    """What the words on the command line ask for."""
    requests: list[Request] = []

    def note(request: Request) -> int:
        requests.append(request)
        return 1

    monkeypatch.setattr(command, "run", note)
    before = signal.getsignal(signal.SIGINT)

    def call(*words: str) -> Request:
        try:
            assert main(words) == 1
        finally:
            signal.signal(signal.SIGINT, before)
        return requests.pop()

    return call


def test_without_options_it_runs_fresh_seeds_for_a_minute_on_all_cores(
    requested: Callable[..., Request],
) -> None:
    request = requested()
    first, second = command._campaign_options(request), command._campaign_options(request)

    assert request == Request()
    assert (first.count, first.seconds, first.operations) == (None, 60, 200)
    assert first.jobs >= 1
    assert first.first != second.first


def test_every_option_reaches_the_simulator(requested: Callable[..., Request]) -> None:
    words = (
        "--seeds 5:3 --minutes 0.5 --jobs 3 --operations 9 --stop-at-first --failures f --seed-seconds "
        "7 --quiet --json"
    )

    assert requested(*words.split()) == Request(
        seeds=(5, 3),
        minutes=0.5,
        jobs=3,
        operations=9,
        stop_at_first=True,
        failures=Path("f"),
        seed_seconds=7,
        quiet=True,
        json=True,
    )
    assert requested("--mutants", "--count", "7") == Request(mutants=True, count=7)
    assert requested("--seed", "4", "--keep", "3,7-9", "--shrink-seconds", "2", "--trace", "t") == Request(
        seed=4, keep=(3, 7, 8, 9), shrink_seconds=2, trace=Path("t")
    )
    assert requested("--seed", "4", "--no-shrink").shrink_seconds == 0


def test_a_fleet_is_shown_event_by_event(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that finds something is shown with the command that repeats it."""
    episode = Episode(COLD_START, 1.5, 2.5, 401, 400, 0.001, 9, 0.1, 2048, 1024)

    def run_fleet(seed: int, size: Size) -> Report:
        if seed == FAILING:
            raise Violation("two own container 7")
        return Report(seed=seed, size=size, episodes=(episode,), acks=1, refused=0)

    monkeypatch.setattr(show, "run_fleet", run_fleet)
    code, out, _ = simulate(fleet=(20, 400), seed=1)
    assert (code, out.splitlines()[0]) == (0, "seed 1: 20 hosts, 400 containers")
    assert re.fullmatch(r"cold start +1\.5 s +2\.5 s +401 +400 .*", out.splitlines()[2])
    code, out, _ = simulate(fleet=(20, 400), seeds=(FAILING - 1, 2), quiet=True)
    assert (code, out.splitlines()) == (
        1,
        [
            f"seed {FAILING}: two own container 7",
            f"  replay it: scripts/simulate --fleet 20:400 --seed {FAILING}",
        ],
    )
    code, out, _ = simulate(fleet=(200, 20_000), count=1, json=True)
    assert (code, json.loads(out)["size"]["heartbeat"]) == (0, 0.5)


@pytest.mark.parametrize(
    "words, says",
    [
        ("--seeds 7", "'7' is no range"),
        ("--seeds 7:0", "'7:0' is no range"),
        ("--seeds 7:2 --count 3", "leave out --count"),
        ("--seed 7 --count 3", "--count is of use only without --seed"),
        ("--seed 7 --stop-at-first", "--stop-at-first is of use only without --seed"),
        ("--mutants --stop-at-first", "--stop-at-first is of no use with --mutants"),
        ("--keep 3", "--keep is of use only with --seed"),
        ("--trace t", "--trace is of use only with --seed"),
        ("--fleet 20", "'20' is no fleet"),
        ("--fleet 5:100", "'5:100' is no fleet"),
        ("--fleet 20:400 --operations 7", "--fleet takes --seed"),
        ("--no-shrink", "--no-shrink is of use only with --seed"),
        ("--seed 7 --keep 3-x", "'3-x' names no steps"),
        ("--count 0", "'--count'"),
        ("--what", "--what"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2

    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert says in printed
    assert "`simulate --help`" in printed


@pytest.mark.parametrize(
    "options, first, count", [({}, 0, 300), ({"count": 7}, 0, 7), ({"seeds": (5, 3)}, 5, 3)]
)
def test_mutants_all_run_the_same_seeds(
    options: dict[str, Any], first: int, count: int, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[ScoreOptions] = []

    def note(options: ScoreOptions, *, quiet: bool, as_json: bool) -> int:
        scored.append(options)
        return 0

    monkeypatch.setattr(command, "show_score", note)
    code, _, _ = simulate(mutants=True, minutes=2, operations=9, **options)
    (score,) = scored

    assert code == 0
    assert (score.first, score.seeds, score.seconds, score.operations) == (first, count, 120, 9)
    assert len(score.mutants) >= 30


def test_a_clean_campaign_prints_a_table_and_no_violations(simulate: Simulate) -> None:
    code, out, err = simulate(seeds=CLEAN)
    table = dict(re.split(r"  +", line.strip()) for line in out.splitlines()[:-1])

    assert code == 0
    assert out.splitlines()[-1] == "0 violations"
    assert [table[name] for name in ("seeds", "operations", "acked appends", "kills")] == [
        "4",
        "800",
        "400",
        "8",
    ]
    assert table["simulated hours"] == "2.0"
    assert table.keys() >= {
        "power losses",
        "zombies",
        "faults met",
        "real seconds",
        "seeds per minute and core",
    }
    assert err == "seeds from 100 on, 1 at a time\n"


def test_each_failing_seed_comes_with_the_command_that_replays_it(simulate: Simulate) -> None:
    code, out, err = simulate(seeds=WITH_FAILURES)

    assert code == 1
    assert (
        f"seed {FAILING}: segment 'a-40' lost 40 bytes\n  replay it: scripts/simulate --seed {FAILING}\n"
        in out
    )
    assert f"seed {BREAKING}: the simulator broke: LookupError" in out
    assert out.endswith("2 violations\n")
    assert f"seed {FAILING} fails: segment 'a-40' lost 40 bytes\n" in err


def test_quiet_prints_failing_seeds_only(simulate: Simulate) -> None:
    assert simulate(seeds=CLEAN, quiet=True) == (0, "", "")

    code, out, err = simulate(seeds=(FAILING, 1), quiet=True)

    assert (code, err) == (1, "")
    assert out.splitlines() == [
        f"seed {FAILING}: segment 'a-40' lost 40 bytes",
        f"  replay it: scripts/simulate --seed {FAILING}",
    ]


def test_json_is_a_line_for_each_failing_seed_and_one_for_all(simulate: Simulate) -> None:
    code, out, err = simulate(seeds=(FAILING - 1, 3), operations=50, json=True, quiet=True)
    failing, summary = map(json.loads, out.splitlines())

    assert (code, err) == (1, "")
    assert (failing["seed"], failing["violation"]) == (FAILING, "segment 'a-40' lost 40 bytes\nmore about it")
    assert failing["replay"] == f"scripts/simulate --seed {FAILING} --operations 50"
    assert (summary["seed"], summary["seeds_run"], summary["failing_seeds"]) == (FAILING, 3, [FAILING])
    assert (summary["violation"], summary["counts"]) == (failing["violation"], {"acked": 300, "kills": 6})


def test_failing_seeds_are_added_to_a_file(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "failures.jsonl"
    for _ in range(2):
        simulate(seeds=(FAILING, 1), failures=file)

    assert [json.loads(line)["seed"] for line in file.read_text().splitlines()] == [FAILING, FAILING]


def test_a_file_that_cannot_be_written_is_reported_before_any_seed_is_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        for words in (("--failures", str(tmp_path)), ("--seed", "1", "--trace", str(tmp_path))):
            assert main(words) == 1
            assert capfd.readouterr() == ("", f"error: {tmp_path}: Is a directory\n")
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_replay_prints_the_trace_and_the_smallest_failure(simulate: Simulate) -> None:
    code, out, err = simulate(seed=FAILING)
    lines = out.splitlines()

    assert code == 1
    assert lines[0] == f"the last {len(STEPS)} lines of the trace:"
    assert f"30.0 client step 30 of seed {FAILING}" in lines
    assert f"seed {FAILING} fails: segment 'a-40' lost 40 bytes" in lines
    assert lines[-1] == f"  replay it: scripts/simulate --seed {FAILING} --keep 7-8,30 --no-shrink"
    assert f"shrinking: {len(NEEDED)} of {len(STEPS)} steps still fail, after " in err


def test_the_printed_command_replays_the_smallest_failure(
    simulate: Simulate, requested: Callable[..., Request]
) -> None:
    _, out, _ = simulate(seed=FAILING, operations=50)
    words = shlex.split(out.splitlines()[-1].partition("scripts/simulate ")[2])
    request = requested(*words)

    code, out, _ = simulate(
        seed=request.seed,
        keep=request.keep,
        operations=request.operations,
        shrink_seconds=request.shrink_seconds,
    )

    assert request.operations == 50
    assert code == 1
    assert f"seed {FAILING} fails: segment 'a-3' lost 3 bytes" in out
    assert "replay it" not in out


def test_ctrl_c_while_shrinking_keeps_what_was_found(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_one, runs = WorkerPool.run_one, itertools.count(1)

    def interrupted(pool: WorkerPool, job: Job) -> Verdict:
        if next(runs) == 9:
            raise KeyboardInterrupt
        return run_one(pool, job)

    monkeypatch.setattr(WorkerPool, "run_one", interrupted)
    code, out, _ = simulate(seed=FAILING)
    kept = parse_steps(out.partition("--keep ")[2].split()[0])

    assert code == 130
    assert set(NEEDED) < set(kept) < set(STEPS)
    assert "it may go on with less" in out


def test_a_replay_writes_the_whole_trace(simulate: Simulate, tmp_path: Path) -> None:
    simulate(seed=1, trace=tmp_path / "trace")

    assert (tmp_path / "trace").read_text().splitlines() == [
        f"{number}.0 client step {number} of seed 1" for number in STEPS
    ]


def test_a_replay_in_json_is_one_line(simulate: Simulate) -> None:
    code, out, err = simulate(seed=FAILING, json=True, quiet=True)

    assert (code, err) == (1, "")
    assert json.loads(out) == {
        "seed": FAILING,
        "seeds_run": 1,
        "violation": "segment 'a-40' lost 40 bytes\nmore about it",
        "digest": f"{FAILING:x}",
        "keep": "7-8,30",
        "replay": f"scripts/simulate --seed {FAILING} --keep 7-8,30",
    }


@pytest.mark.parametrize("request_", ["seeds=(HANGING - 1, 9), jobs=1", "seed=HANGING"])
def test_ctrl_c_ends_with_130_and_leaves_no_process(request_: str, tmp_path: Path) -> None:
    """As a terminal does it: every process of the group is interrupted, and again until the end."""
    program = (
        "import sys\n"
        "from support.fake_seeds import HANGING, run_fake\n"
        "from simulation.interrupts import interrupt_once\n"
        "from simulation.command import Request, run\n"
        "interrupt_once()\n"
        f"sys.exit(run(Request({request_}), run_fake))\n"
    )
    pipe = subprocess.PIPE
    started = [sys.executable, "-c", program]
    with subprocess.Popen(
        started, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, start_new_session=True
    ) as process:
        assert process.stderr is not None
        worker = int(next(line for line in process.stderr if line.startswith("hanging in ")).split()[-1])
        while process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.0005)
        out, err = process.communicate()

    assert (process.returncode, err) == (130, "")
    assert "seeds=" not in request_ or out.endswith("interrupted, until then 0 violations\n")
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_the_module_runs_the_real_simulator(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "simulation", "--seeds", "1:2", "--operations", "20", "--json", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    summary = json.loads(done.stdout.splitlines()[-1])

    assert (done.returncode, done.stderr) == (0 if summary["seed"] is None else 1, "")
    assert summary["seeds_run"] == 2
    assert summary["operations"] > 0
