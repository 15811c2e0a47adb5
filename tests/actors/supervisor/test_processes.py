"""Host processes: their end as an event, with its reason; signals that reach the right one (V6, V10)."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from support.patience import scaled
from tierlog.actors.kernel.process_status import holds_lock, process_start
from tierlog.actors.supervisor import processes
from tierlog.actors.supervisor.processes import HostProcess, spawn

pytestmark = pytest.mark.anyio
SLEEP = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture(params=[True, False], ids=["pidfd", "poll"], autouse=True)
def with_and_without_pidfd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "HAS_PIDFD", request.param and processes.HAS_PIDFD)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that somebody else started."""
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


async def test_v6_the_exit_of_a_process_is_known_with_its_cause() -> None:
    process = spawn([sys.executable, "-c", "raise SystemExit(3)"])
    await process.wait()
    assert process.ended.is_set()
    assert (process.code, process.how) == (3, "exited with code 3")


async def test_a_killed_process_names_the_signal() -> None:
    process = spawn(SLEEP)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.wait)
        process.kill()
    assert (process.code, process.how) == (-signal.SIGKILL, "was ended by SIGKILL")
    process.kill()  # It has ended: nothing happens, also if its number were in use again.


async def test_v4_a_process_that_is_no_child_is_watched_too(stranger: subprocess.Popen[bytes]) -> None:
    process = HostProcess(stranger.pid)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.wait)
        process.signal(signal.SIGTERM)
        # Its parent is notified of the end as always.
        assert await anyio.to_thread.run_sync(stranger.wait) == -signal.SIGTERM
    assert process.ended.is_set()


async def test_a_process_that_is_gone_cannot_be_watched(stranger: subprocess.Popen[bytes]) -> None:
    stranger.kill()
    stranger.wait()
    with pytest.raises(ProcessLookupError):
        await HostProcess(stranger.pid).wait()
        raise ProcessLookupError  # Without pidfds the end is all there is to see.


async def test_v4_a_reused_process_id_is_refused(
    stranger: subprocess.Popen[bytes],
) -> None:
    start = process_start(stranger.pid)
    assert start
    assert start != process_start(os.getpid())
    with pytest.raises(ProcessLookupError, match="is not the one that started"):
        HostProcess(stranger.pid, start=process_start(os.getpid()))
    process = HostProcess(stranger.pid, start=start)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.wait)
        process.kill()
        assert await anyio.to_thread.run_sync(stranger.wait) == -signal.SIGKILL


def test_v4_the_holder_of_a_files_lock_is_found(stranger: subprocess.Popen[bytes], tmp_path: Path) -> None:
    path, other = tmp_path / "held", tmp_path / "other"
    other.touch()
    with path.open("xb") as file:
        assert not holds_lock(os.getpid(), str(path))
        fcntl.flock(file, fcntl.LOCK_EX)
        assert holds_lock(os.getpid(), str(path))
        assert not holds_lock(os.getpid(), str(other))
        assert not holds_lock(stranger.pid, str(path))
        fcntl.flock(file, fcntl.LOCK_UN)
        assert not holds_lock(os.getpid(), str(path))
    assert not holds_lock(os.getpid(), str(tmp_path / "none"))


async def test_v5_a_stopped_process_is_seen_to_be_frozen() -> None:
    process = spawn(SLEEP)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.wait)
        assert not process.is_frozen()
        process.signal(signal.SIGSTOP)
        with anyio.fail_after(scaled(30)):
            while not process.is_frozen():
                await anyio.sleep(0.001)
        process.signal(signal.SIGCONT)
        process.kill()


async def test_v10_a_host_runs_in_its_own_session_and_inherits_only_standard_descriptors() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    code = (
        "import os, sys; sys.exit(0 if os.getsid(0) == os.getpid() and not "
        "os.path.exists(f'/proc/self/fd/{sys.argv[1]}') else 1)"
    )
    try:
        process = spawn([sys.executable, "-c", code, str(writing)])
        await process.wait()
    finally:
        os.close(reading)
        os.close(writing)
    assert process.how == "exited with code 0"
