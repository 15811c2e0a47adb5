"""Each chaos script breaks a real service and comes back with a verdict, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from s3_gateway import NoGateway, find_gateway

from chaos_parts import namespaces
from chaos_parts.spark import fault_name
from chaos_parts.spark_scenarios import CELLS, FaultKind, Point, scenarios
from chaos_parts.spark_session import missing
from support.bookkeeper import installation
from support.leftovers import processes_with
from support.live_service import SyncOwnService
from support.patience import scaled
from tierlog.storage_backends.ledgers.installed import FOLDER_VARIABLE

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NAMES = ("disk_full", "failover", "freeze", "partition")
SMALL = ("--containers", "2", "--writers", "1")
MACHINES = ("machines", "--hosts", "2", "--pace", "0.1")
needs_machines = pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing())
needs_spark = pytest.mark.skipif(bool(missing()), reason=missing())
extended = partial(pytest.param, marks=pytest.mark.extended)

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not Path("/proc/self/fd").exists(), reason="the scripts look at processes through /proc"
    ),
]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder with a short path, because sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="tc"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def command(script: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(SCRIPTS / f"chaos_{script}.py"), *arguments]


def environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "120"}


def chaos(temporary: Path, script: str, *arguments: str) -> dict[str, Any]:
    """The verdict of a run that held."""
    done = subprocess.run(
        command(script, *arguments, "--json"),
        env=environment(temporary),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(temporary.iterdir()) == []
    verdict: dict[str, Any] = json.loads(done.stdout)
    assert verdict["holds"]
    assert verdict["violations"] == []
    assert verdict["acked"] > 0
    return verdict


@pytest.mark.parametrize(
    "script, seed, figure",
    [
        pytest.param(
            *("failover", "2", "SIGKILL of a host until the first ack of the new owner"),
            marks=pytest.mark.extended,
        ),
        pytest.param("partition", "2", "", marks=pytest.mark.extended),
        pytest.param(
            *("freeze", "3", "SIGSTOP of a host until the first ack of the new owner"),
            marks=pytest.mark.extended,
        ),
        pytest.param(*("disk_full", "1", "disk free again, until the first ack"), marks=pytest.mark.extended),
    ],
)
def test_one_round_of_each_holds(script: str, seed: str, figure: str, temporary: Path) -> None:
    verdict = chaos(temporary, script, "--rounds", "1", "--seed", seed, *SMALL)

    assert verdict["rounds"] == 1
    assert any(name.startswith(figure) and samples["count"] for name, samples in verdict["figures"].items())


@pytest.mark.long
@pytest.mark.parametrize("client", ["tierlog", "raw"])
@pytest.mark.parametrize("script", NAMES)
def test_many_rounds_hold(script: str, client: str, temporary: Path) -> None:
    verdict = chaos(temporary, script, "--rounds", "25", "--client", client)

    assert verdict["rounds"] == 25


@pytest.mark.extended
def test_what_was_flushed_comes_back_when_all_else_is_lost(temporary: Path) -> None:
    verdict = chaos(temporary, "lts_only", "--rounds", "3", "--seed", "1", "--containers", "2")

    assert verdict["actions"] == {"loss of wal/": 2, "loss of all but lts/": 1}
    assert verdict["counts"]["steps lost after the last flush"] > 0
    assert verdict["figures"]["tierlog recover --from-lts"]["count"] == 3


@pytest.mark.long
def test_everything_but_long_term_storage_is_lost_many_times(temporary: Path) -> None:
    assert chaos(temporary, "lts_only", "--rounds", "50")["rounds"] == 50


@pytest.fixture
def _gateway() -> None:
    try:
        find_gateway()
    except NoGateway as reason:
        pytest.skip(str(reason))


@needs_machines
@pytest.mark.extended
@pytest.mark.usefixtures("_gateway")
def test_a_few_rounds_on_several_machines_hold(temporary: Path) -> None:
    verdict = chaos(temporary, *MACHINES, "--rounds", "3", "--seed", "5", *SMALL)

    assert verdict["rounds"] == 3
    assert verdict["counts"]["events read without the service"] == verdict["events"]
    assert verdict["figures"]["SIGKILL of a host, until the first ack"]["count"]


@needs_machines
@pytest.mark.extended
def test_a_service_survives_the_loss_of_a_bookie_and_of_a_sidecar(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(installation().folder))
    verdict = chaos(temporary, *MACHINES, "--engine", "bookkeeper", "--rounds", "2", "--seed", "225", *SMALL)

    assert verdict["actions"] == {"SIGKILL of a bookie": 1, "SIGKILL of a sidecar": 1}
    for lost in verdict["actions"]:
        assert verdict["figures"][f"{lost}, until the first ack"]["count"]


@needs_machines
@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("engine", ["s3", "bookkeeper"])
def test_two_hundred_rounds_on_several_machines_hold(
    engine: str, temporary: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "bookkeeper":
        monkeypatch.setenv(FOLDER_VARIABLE, str(installation().folder))
    else:
        request.getfixturevalue("_gateway")
    verdict = chaos(temporary, "machines", "--rounds", "200", "--engine", engine)

    assert verdict["rounds"] == 200


@needs_spark
@pytest.mark.long
@pytest.mark.parametrize(
    "kind, point, is_stream",
    [
        (FaultKind.RETRY, Point.MIDWAY, False),
        (FaultKind.SPECULATION, Point.MIDWAY, False),
        (FaultKind.HOST_KILLED, Point.COMMIT_DONE, True),
    ],
)
def test_a_round_of_spark_holds(kind: FaultKind, point: Point, is_stream: bool, temporary: Path) -> None:
    number = next(
        each.number for each in scenarios(5, 400) if each.cell == (kind, point) and each.stream == is_stream
    )
    verdict = chaos(temporary, "spark", "--containers", "2", "--seed", "5", "--only", str(number))

    assert (verdict["actions"], verdict["rounds"]) == ({fault_name(kind, point): 1}, 1)


@needs_spark
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_every_cell_of_spark_holds(temporary: Path) -> None:
    assert len(chaos(temporary, "spark")["actions"]) == len(CELLS)


@pytest.mark.long
def test_long_tails_hold(temporary: Path) -> None:
    chaos(temporary, "failover", "--rounds", "10", "--tail", "10000")


@pytest.mark.long
@pytest.mark.parametrize("script", ["failover", "freeze"])
def test_a_running_service_can_be_attached_to(script: str, temporary: Path, tmp_path: Path) -> None:
    with SyncOwnService(tmp_path / "data", hosts=2, containers=2) as service:
        chaos(temporary, script, "--rounds", "3", "--url", service.url)

        assert service.stop() == 0


@pytest.mark.parametrize(
    "script, arguments, log, ready",
    [
        ("failover", ("--rounds", "1000", *SMALL), "service.log", "opened"),
        pytest.param(
            "spark",
            ("--seed", "5"),
            "spark-1.log",
            "NativeCodeLoader",
            marks=[needs_spark, pytest.mark.extended],
        ),
        pytest.param(
            "machines",
            ("--rounds", "1000", *SMALL),
            "host-of-1.log",
            "opened",
            marks=[needs_machines, pytest.mark.extended],
        ),
    ],
)
def test_ctrl_c_leaves_nothing(
    script: str,
    arguments: tuple[str, ...],
    log: str,
    ready: str,
    temporary: Path,
    request: pytest.FixtureRequest,
) -> None:
    if script == "machines":
        request.getfixturevalue("_gateway")
    with subprocess.Popen(
        command(script, *arguments),
        env=environment(temporary),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        deadline = time.monotonic() + scaled(60)
        while not any(ready in path.read_text() for path in temporary.glob(f"*/{log}")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started = processes_with(temporary)
        process.send_signal(signal.SIGINT)

        # Its writers have the same standard error output: it ends when the last of them has.
        assert process.communicate() == (b"", b"")

    assert process.returncode == 130
    assert len(started) > 1
    assert list(temporary.iterdir()) == []
    assert processes_with(temporary) == []


@pytest.mark.parametrize(
    "script",
    [
        NAMES[0],
        *map(extended, NAMES[1:]),
        extended("lts_only"),
        extended("machines"),
        pytest.param("spark", marks=[needs_spark, pytest.mark.extended]),
    ],
)
def test_the_help_describes_the_test_and_its_checks(script: str) -> None:
    done = subprocess.run(command(script, "--help"), capture_output=True, text=True, check=True)

    assert all(
        word in done.stdout
        for word in ("--rounds", "--seed", "Exit status:", f"scripts/chaos_{script}.py --rounds 5")
    )
    assert ("--only" in done.stdout) == (script == "spark")
    assert os.access(SCRIPTS / f"chaos_{script}.py", os.X_OK)


@pytest.mark.parametrize(
    "script, arguments, reason",
    [
        ("failover", ("--rounds", "0"), "a whole number from 1 to 100000, not '0'"),
        extended("failover", ("--pids-from", "x"), "--pids-from needs --url"),
        extended("failover", ("--url", "x"), "'x' is not an HTTP URL"),
        extended("failover", ("--url", "http://x", "--pids-from", "no-file"), "no-file is not a file"),
        extended("failover", ("--pace", "-1"), "seconds from 0 to 60, not '-1'"),
        ("failover", ("--keep", "."), "is not an empty folder"),
        # Without Spark the script would make an environment that has it.
        pytest.param(
            "spark", ("--only", "0"), "from 1 to 100000, not '0'", marks=[needs_spark, pytest.mark.extended]
        ),
    ],
)
def test_wrong_arguments_are_reported(script: str, arguments: tuple[str, ...], reason: str) -> None:
    done = subprocess.run(command(script, *arguments), capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert reason in done.stderr


def test_a_missing_service_is_reported(temporary: Path) -> None:
    done = subprocess.run(
        command("failover", "--url", "http://127.0.0.1:1"),
        env=environment(temporary),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("chaos_failover: no service answers at http://127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1
    assert list(temporary.iterdir()) == []


def test_a_bare_python_goes_through_the_script_that_makes_the_environment(tmp_path: Path) -> None:
    """Without site-packages it finds no tierlog. The environment that is named is none, so nothing is
    installed."""
    (tmp_path / "thesis.txt").write_text("years of work")
    bare = [sys.executable, "-S", str(SCRIPTS / "chaos_failover.py"), "--help"]
    done = subprocess.run(
        bare, env={**os.environ, "TIERLOG_VENV": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr.startswith(f"chaos: {tmp_path} exists and is no virtual environment")
