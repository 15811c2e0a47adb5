"""The command that moves a store: what it prints, what it refuses, and the way to a bucket and back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.command_line import NAME, Run, is_one_line, make_store
from support.live_service import SyncOwnService
from support.patience import scaled
from support.s3_server import BUCKET, Fault, S3Server

PLACE = f"s3://{BUCKET}/moved"


@pytest.fixture(autouse=True)
def _local_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERLOG_CHUNK_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("TIERLOG_SERVER_LEASE", "1s")


def test_a_store_is_prepared_and_then_moved(run: Run, folder: Path) -> None:
    make_store(folder)
    content = run("segment", "read", NAME).out
    new = folder.with_name("new")
    prepared = run("migrate", str(folder), "--to", str(new))
    assert (prepared.code, prepared.err) == (0, "")
    copied, stays = prepared.out.splitlines()
    assert copied.startswith("prepared: copied and verified ")
    assert stays.endswith(f":{folder} until you run the same command with --confirm")
    assert run("segment", "append", NAME, "--data-text", "later").code == 0
    unfinished = run("segment", "create", "other", "--data", str(new))
    assert is_one_line(unfinished.err)
    assert "a store is being moved to" in unfinished.err

    done = run("migrate", str(folder), "--to", str(new), "--confirm", "--json")
    report = json.loads(done.out)
    assert (report["is_complete"], report["keeps_chunks"], report["left"]) == (True, False, [f"{folder}/"])
    assert report["target"].endswith(f":{new}")
    assert run("segment", "read", NAME, "--data", str(new)).out == content + "later"
    assert run("verify", "--data", str(new)).code == 0
    assert run("journal", "verify", "--data", str(new)).code == 0
    for command in (["segment", "append", NAME, "--data-text", "x"], ["segment", "read", NAME], ["doctor"]):
        refused = run(*command)
        assert refused.code == 1, command
        assert f"container 0 was moved to {report['target']}" in refused.out + refused.err
    again = run("migrate", str(folder), "--to", str(new), "--confirm")
    assert again.out.splitlines()[1:] == [
        f"the store is in {report['target']} now; in {report['source']} it cannot be opened any more",
        f"`tierlog lts verify {new}/lts` reads all of it again: do that before you delete anything",
        f"once you have seen it there, delete the old place: {folder}/",
    ]
    assert run("lts", "verify", f"{new}/lts").code == 0


def test_a_prepared_move_is_given_up(run: Run, folder: Path) -> None:
    make_store(folder)
    new = folder.with_name("new")
    assert run("migrate", str(folder), "--to", str(new)).code == 0
    undone = run("migrate", str(folder), "--undo").out.splitlines()
    assert undone[0] == f"the store in {folder} can be opened again"
    assert undone[1].startswith("delete what the move has copied to the place that --to named")
    assert run("backup", "ls", "--json").out.strip() == "[]"
    for options in ((), ("--json",)):
        again = run("migrate", str(folder), "--undo", *options)
        assert (again.code, again.out, is_one_line(again.err)) == (1, "", True)
        assert f"no move of the store in {folder} was begun, or it is given up already" in again.err


def test_a_folder_that_was_moved_away_is_not_served(run: Run, folder: Path) -> None:
    make_store(folder)
    new = folder.with_name("new")
    assert run("migrate", str(folder), "--to", str(new), "--confirm").code == 0
    refused = run("serve", str(folder), "--listen", "127.0.0.1:0", "--hosts", "1")
    assert (refused.code, refused.out) == (1, "")
    assert "container 0 was moved to" in refused.err.splitlines()[-1]
    assert f"`tierlog migrate {folder} --to {new}`, with" in refused.err.splitlines()[-1]
    assert "--undo" not in refused.err


def test_e2_the_doctor_of_an_older_log_of_a_moved_store_names_the_new_place(run: Run, folder: Path) -> None:
    make_store(folder)
    older, new = folder.with_name("older"), folder.with_name("new")
    shutil.copytree(folder / "wal", older)
    assert run("migrate", str(folder), "--to", str(new), "--confirm").code == 0
    shutil.rmtree(folder / "wal")
    shutil.move(older, folder / "wal")
    found = run("doctor", "--data", str(folder))
    assert found.code == 1
    assert f"container 0 was moved to {socket.gethostname()}:{new}: open the store there" in found.out
    assert "adopt" not in found.out  # which is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name the new place with --to, or give --undo alone"),
        (("--undo", "--to", "new"), "give --undo alone"),
        (("--undo", "--confirm"), "give --undo alone"),
        (("--to", ""), "it is empty"),
        (("--undo", "--chunks", "keep"), "give --undo alone"),
    ],
)
def test_wrong_usage(run: Run, folder: Path, arguments: tuple[str, ...], message: str) -> None:
    refused = run("migrate", str(folder), *arguments)
    assert refused.code == 2
    assert message in " ".join(refused.err.replace("│", " ").split())


def test_what_is_refused_is_one_line(run: Run, folder: Path) -> None:
    missing = run("migrate", str(folder), "--to", str(folder.with_name("new")))
    assert is_one_line(missing.err)
    assert "there is no store in" in missing.err
    make_store(folder)
    for target, message in {
        str(folder): "are the same place",
        "s3://UPPER": "is not a location in S3",
        "s3:/x/y": "write s3://",
    }.items():
        refused = run("migrate", str(folder), "--to", target)
        assert refused.code == 1
        assert is_one_line(refused.err)
        assert message in refused.err
    # As ever: nothing was begun.
    assert run("backup", "ls", "--json").out.strip() == "[]"


@pytest.mark.extended
def test_a_bucket_that_does_not_answer_or_ignores_conditions_is_refused(
    server: S3Server, run: Run, folder: Path
) -> None:
    make_store(folder)
    missing = run("migrate", str(folder), "--to", "s3://no-such-bucket/x")
    assert is_one_line(missing.err)
    assert "there is no bucket no-such-bucket" in missing.err
    server.fail(Fault("PutObject", times=100, without_header="if_none_match"))
    ignored = run("migrate", str(folder), "--to", PLACE)
    assert is_one_line(ignored.err)
    assert "conditional" in ignored.err
    server.heal()
    assert run("segment", "append", NAME, "--data-text", "x").code == 0


@pytest.mark.extended
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_a_store_is_served_from_a_bucket_after_the_move_and_comes_back(
    server: S3Server, run: Run, folder: Path
) -> None:
    make_store(folder)
    content = run("segment", "read", NAME).out
    with SyncOwnService(folder, hosts=1) as service:
        refused = run("migrate", str(folder), "--to", PLACE, "--confirm")
        assert "stop that service first" in refused.err
        assert server.objects() == {}
        assert service.stop() == 0
    moved = run("migrate", str(folder), "--to", PLACE, "--confirm")
    assert (moved.code, moved.err) == (0, "")
    back = folder.with_name("back")
    with SyncOwnService(folder.with_name("service"), hosts=1, place=PLACE) as service:
        service.settle()
        assert run("segment", "read", NAME, "--url", service.url).out == content
        assert run("segment", "append", NAME, "--data-text", "!", "--url", service.url).code == 0
        refused = run("migrate", PLACE, "--to", str(back), "--confirm")
        assert "if it renews the lease, this one is refused" in refused.err.splitlines()[0]
        assert "already supervises this store: stop it first;" in refused.err
        assert not back.exists()
        assert service.stop() == 0
    assert run("migrate", PLACE, "--to", str(back), "--confirm").code == 0
    assert run("segment", "read", NAME, "--data", str(back)).out == content + "!"
    assert run("lts", "verify", str(back)).code == 0
    for command in (["migrate", PLACE, "--undo"], ["supervise", "--join", PLACE, "--listen", "127.0.0.1:0"]):
        refused = run(*command)
        assert refused.code == 1, command
        assert "was moved to" in refused.err


@pytest.mark.extended
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_an_interrupted_move_goes_on(server: S3Server, run: Run, folder: Path) -> None:
    make_store(folder)
    content = run("segment", "read", NAME).out
    server.fail(Fault("PutObject", key="lts/containers", times=100, stall=True))
    command = [sys.executable, "-m", "tierlog", "migrate", str(folder), "--to", PLACE, "--confirm"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + scaled(30)
    while not any(each.operation == "PutObject" and "lts/containers" in each.key for each in server.seen):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=scaled(30))
    assert process.returncode == 130
    assert b"interrupted: run the same command again to go on" in errors
    server.heal()
    assert run("segment", "read", NAME).out == content
    assert run("migrate", str(folder), "--to", PLACE, "--confirm").code == 0


@pytest.mark.extended
def test_a_backup_of_a_store_in_a_bucket_is_restored_into_a_folder_and_moved_to_a_bucket(
    server: S3Server, run: Run, folder: Path
) -> None:
    """As the documentation says."""
    make_store(folder)
    content = run("segment", "read", NAME).out
    assert run("migrate", str(folder), "--to", PLACE, "--confirm").code == 0
    with SyncOwnService(folder.with_name("service"), hosts=1, place=PLACE) as service:
        service.settle()
        assert run("backup", "monday", "--url", service.url).code == 0
        assert run("segment", "append", NAME, "--data-text", "later", "--url", service.url).code == 0
        listed = run("backup", "ls", "--from", f"{PLACE}/lts", "--json")
        assert [each["name"] for each in json.loads(listed.out)] == ["monday"]
        restored, copy = folder.with_name("restored"), folder.with_name("copy")
        assert run("restore", "monday", "--from", f"{PLACE}/lts", f"--data={restored}").code == 0
        assert service.stop() == 0
    assert run("segment", "read", NAME, "--data", str(restored)).out == content
    assert run("backup", "monday", "--copy-to", str(copy), f"--data={restored}").code == 0
    again = f"s3://{BUCKET}/as-of-monday"
    assert run("migrate", str(restored), "--to", again, "--confirm").code == 0
    assert run("lts", "cat", f"{again}/lts", NAME).out == content
