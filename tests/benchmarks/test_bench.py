"""``scripts/bench`` runs every benchmark, says what it found in a form that programs read, and leaves nothing
behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import parser, temporary_folder
from support.patience import scaled

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"name", "value", "unit", "reference", "ratio", "goal", "lower_is_better", "goal_of"}
OFTEN_MISSING = ("spark_", "table_put_slatedb", "bookkeeper_")
"""How those begin that are left out where what they need is not installed."""
NAMES = [
    "append_1k",
    "append_1k_sqlite",
    "append_1k_64",
    "append_many",
    "append_256k",
    "sequential",
    "segments_1000",
    "segments_at_once",
    "recovery",
    "cold_read",
    "tail_wakeup",
    "warm_cache_read",
    "cache_reconcile",
    "historical_read",
    "historical_read_warm",
    "parallel_read_20ms",
    "metadata_commit",
    "seek",
    "seek_tiny",
    "sorted_run_encode",
    "sorted_run_lookup",
    "sorted_run_merge",
    "sorted_run_appends",
    "sorted_run_amplification",
    "sorted_run_memory",
    "table_put",
    "open_first_ack",
    "host_first_ack",
    "import",
    "segments_create",
    "segments_open",
    "segments_memory",
    "segments_checkpoint",
    "segments_cold_append",
    "segments_cold_reads",
    "chain_boot",
    "chain_boot_s3",
    "gc_delete",
    "gc_deletions",
    "lts_recovery",
    "lts_recovery_memory",
    "verify_listing",
    "verify_deep",
    "http_append_1m",
    "http_append_1k",
    "http_append_batches",
    "http_cold_read",
    "session_append_cpu",
    "session_append_256_cpu",
    "session_tail",
    "session_append_256",
    "session_two_clients",
    "session_append_batches",
    "session_read",
    "session_read_rate",
    "session_beside_tails",
    "session_idle_tail",
    "session_idle",
    "http_parked_polls",
    "s3_put",
    "s3_get",
    "s3_log_append",
    "s3_store_append",
]


# Some twenty processes, one after the other: a busy machine may take its time.
pytestmark = pytest.mark.timeout(240)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks", "--from", str(folder), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def bench(folder: Path, *arguments: str) -> tuple[int, str, str]:
    with start(folder, *arguments) as process:
        try:
            out, err = process.communicate(timeout=scaled(200))
        finally:
            process.kill()
        return process.returncode, out, err


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(NAMES[at::16], id=f"from-{at}", marks=[pytest.mark.extended] if at else [])
        for at in range(16)
    ],
)
def test_every_benchmark_runs_and_reports_one_object_a_line(
    tmp_path: Path, backend: str, names: list[str]
) -> None:
    status, out, err = bench(tmp_path, "--quick", "--json", "--backend", backend, *names)

    results = [json.loads(line) for line in out.splitlines()]
    assert (status, [result["name"] for result in results]) == (0, names), err
    for result in results:
        assert set(result) == KEYS
        assert result["value"] > 0
        assert result["reference"] > 0
        assert result["ratio"] > 0
        assert isinstance(result["lower_is_better"], bool)
    assert list(tmp_path.iterdir()) == []


def test_named_benchmarks_alone_are_run_and_shown_as_a_table(tmp_path: Path) -> None:
    status, out, err = bench(tmp_path, "--quick", "import", "sequential")

    assert status == 0, err
    assert "import tierlog, over bare Python" in out
    assert "sequential" in out
    assert "append_1k" not in out


def test_an_unknown_name_is_answered_with_the_likely_one(tmp_path: Path) -> None:
    status, out, err = bench(tmp_path, "apend_1k")

    assert (status, out) == (2, "")
    assert "there is no benchmark 'apend_1k'; did you mean 'append_1k'?" in err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_data_is_named(tmp_path: Path) -> None:
    status, _, err = bench(tmp_path, "--data", "missing", "import")

    assert status == 2
    assert f"no data can be put into {tmp_path / 'missing'}: No such file or directory" in err


def test_the_list_names_each_benchmark_with_its_goal_and_runs_none(tmp_path: Path) -> None:
    status, out, _ = bench(tmp_path, "--list")

    assert status == 0
    assert [
        name
        for line in out.splitlines()
        if line[0] != " " and not (name := line.split(":")[0]).startswith(OFTEN_MISSING)
    ] == NAMES
    assert "sequential: one writer, 1 KiB, p50 latency (goal <= 1.5x)" in out


def test_an_interrupt_ends_the_run_at_once_and_removes_the_data(tmp_path: Path) -> None:
    with start(tmp_path, "append_1k") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "append_1k ...\n"
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=scaled(30))

    assert process.returncode == 130
    assert err == "bench: interrupted; removing the data\nbench: the data is removed\n"
    assert list(tmp_path.iterdir()) == []


def test_a_second_interrupt_ends_the_removal_and_names_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    made = parser()
    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with (
        pytest.raises(SystemExit) as ended,
        temporary_folder(made.parse_args(["--from", str(tmp_path)]), made) as folder,
    ):
        raise KeyboardInterrupt

    assert ended.value.code == 130
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "bench: interrupted; removing the data",
        f"bench: not all of the data was removed: delete {folder}",
    ]


def test_benchmarks_that_cannot_run_here_are_skipped_and_listed(tmp_path: Path) -> None:
    """Spark needs Java. One that was asked for by name makes the exit status 1."""
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {
        "PATH": str(tmp_path)
    }
    command = [sys.executable, "-m", "benchmarks", "--from", str(tmp_path), "--quick", "spark_commit_32"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment, timeout=scaled(30)
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert "bench: spark_commit_32 is left out: it needs" in done.stderr
