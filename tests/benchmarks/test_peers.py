"""``scripts/bench --peers`` measures what is there, says what is not, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks.peers.command import NAMES
from benchmarks.peers.contract import Kind
from benchmarks.peers.page import BEGIN, END, write_page
from benchmarks.peers.run import KINDS, Figures, Plan
from benchmarks.peers.workloads import QUICK, WORKLOADS
from support.patience import scaled
from tierlog.storage_backends.ledgers.installed import FOLDER_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = ["bare", "tierlog", "sqlite"]
SERVERS = [name for name in NAMES if name.startswith(("kafka", "nats", "redis"))]

# A server for each of many peers, and applications of Spark, one after the other: a busy machine may take its
# time.
pytestmark = pytest.mark.timeout(600)


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--from", str(folder), "--peers", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def peers(folder: Path, *arguments: str, **variables: str) -> tuple[int, list[dict[str, Any]], str]:
    with start(folder, "--quick", "--json", *arguments, **variables) as process:
        try:
            out, err = process.communicate(timeout=scaled(500))
        finally:
            process.kill()
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def commands_below(folder: Path) -> list[str]:
    """Those of running processes whose arguments name something in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # It has ended.
            continue
        if f"{folder}/tierlog-bench-" in command:
            found.append(command)
    return found


@pytest.mark.extended
def test_what_runs_in_the_users_process_has_a_figure_for_every_workload_it_takes_part_in(
    tmp_path: Path,
) -> None:
    status, lines, err = peers(tmp_path, *EMBEDDED)

    assert status == 0, err
    assert {(line["workload"], line["peer"]) for line in lines} == {
        (workload.name, name) for workload in WORKLOADS for name in EMBEDDED if workload.way != "spark"
    }
    without = {(line["workload"], line["peer"]): line["reason"] for line in lines if "value" not in line}
    assert without == {
        ("delivery", "bare"): "it only appends",
        ("history", "bare"): "it only appends",
        ("restart", "bare"): "it only appends",
        ("delivery", "sqlite"): "nobody can wait for rows",
    }
    assert all(line["value"] > 0 and len(line["rounds"]) == 1 for line in lines if "value" in line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
@pytest.mark.parametrize("name", ["bare-service", "tierlog-service", "parquet", *SERVERS])
def test_a_server_has_a_figure_for_every_workload_or_is_not_available(tmp_path: Path, name: str) -> None:
    """Without the network: what is not installed cannot be fetched."""
    status, lines, err = peers(tmp_path, name, TIERLOG_MAVEN_MIRROR="http://127.0.0.1:1")

    reasons = {line["reason"] for line in lines if "reason" in line} - {"as with syncs", "it only appends"}
    if status:
        causes = ("is not installed", "127.0.0.1:1", "it needs ")
        assert all(any(cause in reason for cause in causes) for reason in reasons), err
    else:
        assert not reasons
    assert list(tmp_path.iterdir()) == []
    assert commands_below(tmp_path) == []


def test_a_peer_that_cannot_be_fetched_is_named_and_the_others_run(tmp_path: Path) -> None:
    status, lines, err = peers(
        tmp_path,
        *("kafka", "sqlite", "one"),
        **{FOLDER_VARIABLE: str(tmp_path / "none"), "TIERLOG_MAVEN_MIRROR": "http://127.0.0.1:1"},
    )

    [kafka] = [line for line in lines if line["peer"] == "kafka"]
    [sqlite] = [line for line in lines if line["peer"] == "sqlite"]
    what = "the package aiokafka is not installed" if find_spec("aiokafka") is None else "127.0.0.1:1"
    assert (status, kafka["reason"].startswith("not available: "), what in kafka["reason"]) == (1, True, True)
    assert "bench: kafka is not available: " in err
    assert sqlite["value"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.extended)])
def test_an_interrupt_ends_the_servers_and_removes_the_data(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path, "tierlog-service", "one", "--rounds", "1000") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "one ...\n"
        assert commands_below(tmp_path) != []
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=scaled(60))

    assert (process.returncode, err) == (
        130,
        "bench: interrupted; removing the data\nbench: the data is removed\n",
    )
    assert commands_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kafkq"], "did you mean 'kafka'?"),
        (["--rounds", "0"], "--rounds is a number from 1 on"),
        (["--backend", "trio"], "the peers' clients run on asyncio+uvloop only"),
        (["--quick", "--write"], "--quick has no figures"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    with start(tmp_path, *arguments) as process:
        _, err = process.communicate(timeout=scaled(60))

    assert process.returncode == 2
    assert message in err


# --- the page -----------------------------------------------------------------------------------


def kind(name: str) -> Kind:
    [found] = [kind for kind in KINDS if kind.name == name]
    return found


def written(folder: Path, **figures: list[float]) -> str:
    """The page about appends in flight, from what each peer did in its rounds."""
    names = [name.replace("_", "-") for name in figures]
    many = next(workload for workload in WORKLOADS if workload.name == "many")
    # Their clients need not be installed.
    kinds = [attrs.evolve(kind(name), version=lambda: "1.0") for name in names]
    plan = Plan(kinds, [many], QUICK, 3, False, lambda what, text: None, {})
    found = {("many", name): rounds for name, rounds in zip(names, figures.values(), strict=True)}
    page = folder / "performance.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(plan, Figures(found), page, "ext4")
    return page.read_text()


def test_the_page_has_medians_ranges_and_promises_between_its_markers(tmp_path: Path) -> None:
    text = written(tmp_path, tierlog=[900.0, 1000.0, 1200.0])

    assert text.startswith(f"before\n{BEGIN}\nMeasured on ")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| tierlog, embedded | the event is synced in the log | 1,000 (900.0-1,200) |" in text
    assert ">1,000</text>" in (tmp_path / "performance.svg").read_text()


def test_spark_has_a_table_of_its_own_with_those_that_it_reaches(tmp_path: Path) -> None:
    wanted = [workload for workload in WORKLOADS if workload.name in {"many", "spark-read"}]
    kinds = [attrs.evolve(kind(name), version=lambda: "1.0") for name in ("sqlite", "kafka", "parquet")]
    found = {("many", "sqlite"): [9.0], ("many", "kafka"): [8.0], ("spark-read", "kafka"): [5.0]}
    page = tmp_path / "performance.md"
    page.write_text(f"{BEGIN}\n{END}\n")

    write_page(
        Plan(kinds, wanted, QUICK, 1, False, lambda what, text: None, {}), Figures(found), page, "ext4"
    )

    first, with_spark, parquet = page.read_text().split("### ")[1:4]
    assert ("SQLite" in first, "Kafka" in first, "parquet" in first) == (True, True, False)
    assert with_spark.startswith("Synced at the ack, with Spark\n")
    assert ("SQLite" in with_spark, "| 5.00 (5.00-5.00) |" in with_spark) == (False, True)
    assert parquet.startswith("Not synced at the ack, with Spark\n")


def test_the_page_names_the_rows_that_are_lost_at_the_same_promise_in_the_same_place(
    tmp_path: Path,
) -> None:
    """Not those of noise, of a server against a library, or of one that syncs nothing; and the bare loop is
    no peer, behind a socket neither."""
    lost = "- tierlog, embedded, 256 appends in flight: SQLite with a queue is 1.2 times as good."
    none = "None, at the same promise and in the same place."

    assert lost in written(tmp_path, tierlog=[1000.0], sqlite=[1200.0])
    assert none in written(tmp_path, tierlog=[1000.0], sqlite=[1040.0])
    assert none in written(tmp_path, tierlog=[1000.0], bare=[9000.0])
    assert none in written(tmp_path, tierlog_service=[1000.0], bare_service=[9000.0])
    assert none in written(tmp_path, tierlog_service=[1000.0], sqlite=[9000.0], kafka_default=[9000.0])
