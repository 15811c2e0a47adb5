"""The quickstart verifies what it claims, finds every difference, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import pytest
import quickstart as program
import quickstart_engines
from quickstart import Run, Segment, check_segment, read_input, split_text
from quickstart_engines import S3Engine
from s3_gateway import NoGateway

import quickstart_options
from chaos_parts.processes import RunError, Worker, processes_of_session
from chaos_parts.service import OwnService, Victim
from quickstart_options import extras, parse
from support import bookkeeper
from support import spark as support
from support.leftovers import processes_with
from support.live_service import SETTINGS
from tierlog import events
from tierlog.storage_backends.ledgers.installed import FOLDER_VARIABLE

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "quickstart.py"
KILLED = b"with SIGKILL; the job goes on"
TEXT = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\neleven\ntwelve\n"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at processes through /proc"),
]


def environment(temporary: Path) -> dict[str, str]:
    return SETTINGS | os.environ | {"COLUMNS": "120", "TMPDIR": str(temporary), "TERM": "xterm"}


def verify(temporary: Path, text: Path, *arguments: str | Path) -> None:
    """A run that holds, with one kill: the killed host had two of the four containers."""
    command = [sys.executable, "-W", "error", SCRIPT, "--input", text, *arguments]
    done = subprocess.run(command, env=environment(temporary), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("with SIGKILL; the job goes on") == 1
    size, last = text.stat().st_size, 1
    if "--lose-wal" in arguments:
        last = 2
        assert "killed 3 processes with SIGKILL and deleted wal/" in done.stdout
        again = f"verified {size} bytes again, recovered from long-term storage alone, 0 lost"
        assert done.stdout.splitlines()[-1] == again
    verified = f"verified {size} bytes in 4 segments, 2 failovers, 0 lost"
    assert done.stdout.splitlines()[-last] == verified
    assert_nothing_left(temporary)


def verify_machines(temporary: Path, text: Path, place: str, *arguments: str) -> None:
    """A run whose store two machines share."""
    engine = place.partition(":")[0]
    command = [
        sys.executable,
        "-W",
        "error",
        str(SCRIPT),
        f"--engine={engine}",
        f"--input={text}",
        *arguments,
    ]
    done = subprocess.run(command, env=environment(temporary), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"the store is {place} on \w+", done.stdout)
    assert len(re.findall(r"killed machine-[12] \(process \d+\) with SIGKILL", done.stdout)) == 1
    *_, rate, verified = done.stdout.splitlines()
    assert re.fullmatch(r"written at \S+ MB/s, failovers included, which took up to \d+\.\d\d s", rate)
    assert verified == f"verified {text.stat().st_size} bytes in 4 segments, 2 failovers, 0 lost"
    assert_nothing_left(temporary)


def assert_nothing_left(temporary: Path) -> None:
    assert list(temporary.iterdir()) == []
    assert processes_with(temporary) == []


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of many lengths, one of them longer than a piece."""
    file = tmp_path_factory.mktemp("input") / "book.txt"
    lines = [f"{number:06d} {'word ' * (number % 23)}\n" for number in range(20_000)]
    file.write_text("\n" + "x" * 1_100_000 + "\n" + "".join(lines))
    return file


@pytest.fixture(scope="module")
def kept(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run, without Spark."""
    home, temporary = tmp_path_factory.mktemp("kept"), tmp_path_factory.mktemp("temporary")
    verify(temporary, text, "--no-spark", "--keep", home / "run")
    return home / "run"


# --- the whole ----------------------------------------------------------------------------------


def test_clients_lose_nothing_when_a_host_is_killed(kept: Path) -> None:
    assert {"data", "service.log"} <= {path.name for path in kept.iterdir()}


def test_clients_lose_nothing_when_the_log_is_lost_after_a_flush(text: Path, tmp_path: Path) -> None:
    verify(tmp_path, text, "--no-spark", "--lose-wal")


@pytest.mark.extended
def test_spark_loses_nothing_when_a_host_is_killed(text: Path, tmp_path: Path) -> None:
    if reason := support.missing():
        pytest.skip(reason)

    verify(tmp_path, text)


@pytest.mark.extended
@pytest.mark.timeout(450)  # it may build the gateway
def test_a_bucket_loses_nothing_when_one_of_two_machines_is_killed(text: Path, tmp_path: Path) -> None:
    verify_machines(tmp_path, text, "s3://chunks/quickstart", "--no-spark")


@pytest.mark.extended
def test_bookkeeper_loses_nothing_when_one_of_two_machines_is_killed(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bookkeeper.installation().folder
    (tmp_path / "temporary").mkdir()
    (tmp_path / "data-home" / "tierlog").mkdir(parents=True)
    (tmp_path / "data-home" / "tierlog" / "bookkeeper").symlink_to(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)

    place = r"bookkeeper://127\.0\.0\.1:\d+/quickstart"
    verify_machines(tmp_path / "temporary", text, place, "--no-spark")


@pytest.mark.long
@pytest.mark.timeout(450)
def test_spark_loses_nothing_in_a_bucket_when_a_machine_is_killed(text: Path, tmp_path: Path) -> None:
    if reason := support.missing():
        pytest.skip(reason)

    verify_machines(tmp_path, text, "s3://chunks/quickstart")


def test_where_no_gateway_can_be_had_the_tests_s3_server_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> Path:
        raise NoGateway("there is no `go`")

    monkeypatch.setattr(quickstart_engines, "find_gateway", find)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    engine = S3Engine()
    with engine.running(tmp_path / "s3"):
        url = engine.config.split('"')[1]
        assert engine.shown == f"the tests' S3 server, because there is no `go`, at {url}"
        assert httpx.get(url).status_code == 403
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


# --- the input ----------------------------------------------------------------------------------


def test_the_segments_are_the_text_cut_between_lines() -> None:
    segments = split_text(TEXT)

    assert b"".join(segment.text for segment in segments) == TEXT
    assert [event for segment in segments for event in segment.events()] == TEXT.splitlines(keepends=True)
    assert all(len(segment.pieces) > 1 for segment in segments)


def test_a_line_that_is_too_long_for_a_piece_becomes_several_events() -> None:
    text = TEXT * 10_000 + b"x" * 500_000 + b"\n" + TEXT * 10_000
    segments = split_text(text)

    assert b"".join(segment.text for segment in segments) == text
    assert max(len(event) for segment in segments for event in segment.events()) == 256 << 10


def test_the_files_of_a_folder_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"three\n")
    (tmp_path / "a").write_bytes(b"one\ntwo\n")

    assert read_input(tmp_path) == b"one\ntwo\nthree\n"


def test_a_short_input_is_refused() -> None:
    with pytest.raises(RunError, match="give more text"):
        split_text(b"one\n")


# --- kills --------------------------------------------------------------------------------------


class FakeService:
    """Two hosts with two containers each."""

    def __init__(self, failovers: int = 2) -> None:
        self.owners: list[str] = []
        self._failovers = failovers

    async def settled(self) -> dict[str, Any]:
        return {"failovers": self._failovers, "failover_seconds": [0.2, 0.3][: self._failovers]}

    async def owner(self, segment: str) -> Victim:
        self.owners.append(segment)
        return Victim("host-0", 1, (0, 1))

    def send_signal(self, victim: Victim, number: signal.Signals) -> bool:
        return number is signal.SIGKILL


def run_of(pieces: list[bytes], service: FakeService) -> Run:
    return Run(cast("OwnService", service), [Segment("s", pieces)])


async def test_the_owner_of_the_segment_is_killed_once_in_the_middle() -> None:
    service = FakeService()
    run = run_of([b"x" * 10] * 11, service)
    killed = []
    for piece in (0, 1, 2, 3, 3, 4, 5, 6, 9):
        await run.on_piece(0, piece)
        killed.append(len(service.owners))

    assert killed == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert service.owners == ["s"]
    assert await run.failovers() == (2, 0.3)


async def test_fewer_failovers_than_lost_containers_are_an_error() -> None:
    run = run_of([b"x", b"y", b"z"], FakeService(failovers=1))
    await run.on_piece(0, 0)

    with pytest.raises(RunError, match="2 containers lost the host, 1 moved"):
        await run.failovers()


async def test_a_job_that_ends_before_the_kill_proves_nothing() -> None:
    with pytest.raises(RunError, match="the work was done before a host was killed"):
        await run_of([b"x", b"y", b"z"], FakeService()).failovers()


# --- checks -------------------------------------------------------------------------------------


class Growing:
    """A store that applies repeated events again."""

    def __init__(self) -> None:
        self.length = 0

    async def segment_info(self, name: str) -> Growing:
        return self

    async def append_many(self, name: str, events: list[bytes], **_: object) -> None:
        self.length += len(b"".join(events))


async def test_repeated_events_that_are_applied_again_are_an_error() -> None:
    run = run_of([b"one\n"] * 3, FakeService())
    with pytest.raises(RunError, match="repeated events grew it from 8 to 16 bytes"):
        await run.append_numbered(cast("Any", Growing()), 0, 0, 1)


class Held:
    """A store with these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, name: str, offset: int, size: int) -> bytes:
        return self._data[offset : offset + min(size, 10)]


SEGMENT = Segment("s", [TEXT])
FRAMED = events.encode(SEGMENT.events())


@pytest.mark.parametrize(
    "data, reason",
    [
        (FRAMED[:-4], f"ends at offset {len(FRAMED) - 4}; the input makes {len(FRAMED)} bytes"),
        (FRAMED[:20] + b"X" + FRAMED[21:], "offset 20: the service differs from the input"),
        (FRAMED[:8] + FRAMED, "offset 12: the service differs"),
        (FRAMED + b"x", f"offset {len(FRAMED)}: the service differs"),
    ],
)
async def test_every_difference_is_found(data: bytes, reason: str) -> None:
    with pytest.raises(RunError, match=f"segment s.* {reason}"):
        await check_segment(cast("Any", Held(data)), SEGMENT)


# --- the end ------------------------------------------------------------------------------------


async def test_a_worker_that_ends_by_itself_is_reported_with_its_log(tmp_path: Path) -> None:
    worker = await Worker.start("chaos_parts.nothing", folder=tmp_path / "worker")
    try:
        with pytest.raises(RunError, match=r"ended by itself; .*: .*No module named chaos_parts.nothing"):
            await worker.answer()
    finally:
        await worker.kill()


async def test_nothing_of_a_workers_session_is_left(tmp_path: Path) -> None:
    code = (
        "import os, time; os.fork(); os.setpgid(0, 0) if os.getpid() != os.getsid(0) else None; "
        "print(flush=True); time.sleep(600)"
    )
    process = await anyio.open_process([sys.executable, "-c", code], start_new_session=True)
    assert process.stdout is not None
    received = 0
    while received < 2:
        received += len(await process.stdout.receive())

    assert len(processes_of_session(process.pid)) == 2

    await Worker(process, tmp_path / "log").kill()

    assert processes_of_session(process.pid) == []
    assert os.getpid() in processes_of_session(os.getsid(0))


def interrupt(temporary: Path, text: Path, *arguments: str) -> None:
    """Ctrl-C on a terminal, after the kill."""
    controller, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, SCRIPT, "--input", text, *arguments],
        env=environment(temporary),
        stdout=terminal,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(terminal)
        shown = b""
        while KILLED not in shown:
            shown += os.read(controller, 4096)
        process.send_signal(signal.SIGINT)
        with os.fdopen(controller, "rb", buffering=0) as stream, contextlib.suppress(OSError):
            while stream.read(4096):
                pass
        assert process.communicate()[1] == b""
    assert process.returncode == 130
    assert_nothing_left(temporary)


def test_ctrl_c_ends_hosts_and_clients_and_removes_the_folder(text: Path, tmp_path: Path) -> None:
    interrupt(tmp_path, text, "--no-spark")


@pytest.mark.extended
@pytest.mark.timeout(450)
def test_ctrl_c_ends_machines_and_gateway_and_removes_their_folders(text: Path, tmp_path: Path) -> None:
    interrupt(tmp_path, text, "--no-spark", "--engine=s3")


@pytest.mark.long
def test_ctrl_c_ends_java_too(text: Path, tmp_path: Path) -> None:
    if reason := support.missing():
        pytest.skip(reason)
    interrupt(tmp_path, text)


def test_ctrl_c_during_the_imports_ends_it_silently(tmp_path: Path) -> None:
    """One of its imports sends the signal."""
    (tmp_path / "anyio.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


# --- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("--input", "no-such-file"), "no-such-file does not exist"),
        (("--keep", "."), "exists already"),
        (("--engine", "tape"), "invalid choice: 'tape'"),
        (("--engine", "s3", "--lose-wal"), "only with --engine local"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(list(arguments))

    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, has_gateway, needed",
    [
        ("--no-spark", False, "run"),
        ("", False, "spark"),
        ("--engine=s3", True, "spark,s3"),
        ("--engine=s3 --no-spark", True, "s3"),
        ("--engine=s3 --no-spark", False, "s3,s3-server"),
        ("--engine=bookkeeper", False, "spark,bookkeeper"),
    ],
)
def test_only_what_is_needed_is_installed(
    arguments: str, has_gateway: bool, needed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quickstart_options, "can_be_had", lambda: has_gateway)
    assert extras(parse(arguments.split())) == needed
