"""What a folder that is served says to a command that wants it for itself; a copy of a folder that is served
on purpose."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from support.command_line import Run, is_one_line, piped
from support.live_service import SyncOwnService, wait_until
from tierlog import connect_sync, open_store
from tierlog.actors.folder.lock_files import Owner, encode_owner
from tierlog.actors.kernel.process_status import process_start
from tierlog.actors.supervisor.control.messages import Hello, encode

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
NAME = "app/events"


def test_a_writing_command_is_pointed_to_the_service(run: Run, folder: Path) -> None:
    of_folder = ("--data", str(folder))
    with SyncOwnService(folder, hosts=1) as service:
        service.settle()
        refused = run("segment", "create", NAME, *of_folder)
        assert (refused.code, refused.out) == (1, "")
        assert is_one_line(refused.err)
        where = f"process {service.process.pid} on {socket.gethostname()}"
        assert f"{folder} is served by {where} at {service.url}: use --url {service.url}" in refused.err

        backup = run("backup", "monday", *of_folder)
        assert backup.err.endswith(f"at {service.url}: use --url {service.url}\n")
        defrag = run("chunks", "defrag", "--all", *of_folder)
        assert defrag.err.endswith(f"at {service.url}: stop the service first\n")

        doctor = run("doctor", *of_folder)
        assert doctor.code == 0
        assert f"served at {service.url} by process {service.process.pid} on " in doctor.out
        pid = service.pids()["host-0"]
        assert f"open as host-0 in process {pid} on " in doctor.out
        owners = json.loads(run("doctor", "--json", *of_folder).out)["owners"]
        assert {(owner["role"], owner["url"]) for owner in owners} == {
            ("supervisor", service.url),
            ("host-0", ""),
        }
        assert service.stop() == 0
    assert run("segment", "create", NAME, *of_folder).code == 0, "it is nobody's now"


@pytest.mark.extended
def test_a_folder_whose_name_is_no_text_is_served(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"st\xff")
    with SyncOwnService(folder, hosts=1, containers=1) as service:
        service.settle()
        service.create(NAME)
        service.append(NAME, b"data")
        assert service.status()["folder"] == f"{tmp_path}/st\\udcff"
        with connect_sync(service.url) as client:
            client.flush()
            layout = client.segment_layout(NAME, 0, 4)
        assert [each.length for each in layout.extents] == [4]
        assert layout.place.location == "", "JSON cannot say where"


@pytest.mark.extended
def test_the_status_of_a_killed_supervisor_is_not_trusted(folder: Path) -> None:
    with SyncOwnService(folder, hosts=1, containers=1) as first:
        first.settle()
        first.kill()
        refused = piped(folder, b"", "segment", "create", NAME)
        assert "supervisor has ended: start `tierlog serve` again" in refused.err, "nobody is at its URL"
        with SyncOwnService(folder, hosts=1) as second:
            second.settle()
            assert f"use --url {second.url}" in piped(folder, b"", "segment", "create", NAME).err
            assert second.stop() == 0


@pytest.mark.extended
def test_w1_a_service_whose_folder_was_replaced_by_another_store_opens_none_of_its_containers(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    assert piped(other, b"", "segment", "create", NAME).code == 0
    register = (other / "wal" / "0000" / "register").read_bytes()
    with SyncOwnService(folder, hosts=1, containers=1) as service:
        service.settle()
        folder.rename(tmp_path / "moved")
        other.rename(folder)
        os.kill(service.pids()["host-0"], signal.SIGKILL)
        wait_until(lambda: "the folder was moved or replaced" in service.log, "the next host is refused")
        assert service.stop() == 0
    assert (folder / "wal" / "0000" / "register").read_bytes() == register


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with the store."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("host", "start"),
    [
        pytest.param(socket.gethostname(), "boot/1", marks=pytest.mark.extended),
        (socket.gethostname(), "its own"),
        pytest.param("another-machine", "", marks=pytest.mark.extended),
    ],
)
def test_v4_a_foreign_lock_file_kills_no_process(
    folder: Path, stranger: subprocess.Popen[bytes], host: str, start: str
) -> None:
    """Its number was used again after a restart of the machine, or counts on another machine, or somebody
    who may write into the folder names it."""
    assert piped(folder, b"", "segment", "create", NAME).code == 0
    owners = folder / "owners"
    owners.mkdir()
    start = process_start(stranger.pid) if start == "its own" else start
    owner = Owner("a" * 32, stranger.pid, host, 1, role="host-0", start=start)
    with open(owners / owner.owner_id, "xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(encode_owner(owner))
        file.flush()
        with SyncOwnService(folder, hosts=1) as service:
            service.settle()
            assert service.pids()["host-0"] != stranger.pid
            assert service.stop() == 0
    assert stranger.poll() is None


def test_v4_a_connection_that_names_another_process_is_refused(
    folder: Path, stranger: subprocess.Popen[bytes]
) -> None:
    with SyncOwnService(folder, hosts=1, containers=1) as service:
        service.settle()
        (control,) = Path(os.environ["XDG_RUNTIME_DIR"]).glob("tierlog-*/*")
        with socket.socket(socket.AF_UNIX) as impostor:
            impostor.settimeout(10)
            impostor.connect(str(control))
            impostor.sendall(encode(Hello("host-0", stranger.pid, "http://127.0.0.1:1", {}, 0)))
            assert f"not process {stranger.pid}".encode() in impostor.recv(1000)
        assert service.pids()["host-0"] != stranger.pid
        assert service.stop() == 0
    assert stranger.poll() is None


@pytest.mark.extended
def test_w8_a_copy_of_a_folder_is_served_only_on_purpose(folder: Path, tmp_path: Path) -> None:
    """An old copy of the log beside long-term storage that a later owner has claimed."""

    async def own(data: bytes) -> None:
        async with open_store(folder, containers=1) as store:
            if NAME not in await store.list_segments(NAME):
                await store.create_segment(NAME)
            await store.append(NAME, data)

    anyio.run(own, b"old")
    shutil.copytree(folder / "wal", tmp_path / "backup")
    anyio.run(own, b" and lost")
    shutil.rmtree(folder / "wal")
    shutil.copytree(tmp_path / "backup", folder / "wal")

    with SyncOwnService(folder, hosts=1) as service:
        assert any(
            "the folder is a copy or an old backup" in line and "--adopt" in line for line in service.errors
        ), service.errors
        assert service.stop() == 0
    with SyncOwnService(folder, "--adopt", hosts=1) as service:
        service.settle()
        assert service.read(NAME) == b"old"
        assert service.stop() == 0
    with SyncOwnService(folder, hosts=1) as service:
        service.settle()
        assert service.read(NAME) == b"old", "once is enough"
        assert service.stop() == 0
