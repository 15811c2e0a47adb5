"""The command line and the service on a store whose long-term storage is a bucket."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from support.command_line import NAME, Run, is_one_line, make_store, piped
from support.live_service import SyncOwnService
from support.patience import scaled
from support.remote_stores import BucketMachine
from support.s3_server import BUCKET, S3Server
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.shared import identify_shared
from tierlog.actors.supervisor.term import nobody_serves
from tierlog.journal.coordination.objects import ObjectCoordination
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.chunks.s3_objects import S3Objects
from tierlog.storage_backends.chunks.s3_requests import S3Options

PLACE = f"s3://{BUCKET}/a-store"
COPY = f"s3://{BUCKET}/copy"
OTHER = f"s3://{BUCKET}/stores/other"


def test_a_store_is_made_in_a_bucket_and_found_there_again(server: S3Server, folder: Path, run: Run) -> None:
    assert piped(folder, b"", "segment", "create", NAME, "--chunks", PLACE).code == 0
    assert run("segment", "append", NAME, "--data-text", "hello").code == 0
    assert run("segment", "read", NAME).out == "hello"
    doctor = run("doctor", "--deep")

    assert (doctor.code, doctor.err) == (0, "")
    assert all(key.startswith("a-store/") for key in server.objects())


def test_a_bucket_error_is_one_line(server: S3Server, run: Run) -> None:
    missing = run("segment", "create", NAME, "--chunks", "s3://no-such-bucket")
    assert missing.code == 1
    assert is_one_line(missing.err)
    assert f"there is no bucket no-such-bucket at {server.url}; make it, or correct its name" in missing.err

    refused = run("segment", "create", NAME, "--chunks", "lts")
    assert is_one_line(refused.err)
    assert "write s3://BUCKET or s3://BUCKET/PREFIX" in refused.err


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://x"])
def test_an_endpoint_of_the_environment_that_is_no_url_is_named(
    monkeypatch: pytest.MonkeyPatch, server: S3Server, folder: Path, endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    # In a process of its own: what was read of the environment before may be in use.
    refused = piped(folder, b"", "segment", "create", NAME, "--chunks", PLACE)
    assert (refused.code, is_one_line(refused.err)) == (1, True)
    assert f"the endpoint of S3 '{endpoint}' is not the URL of a service: write https://NAME" in refused.err


@pytest.mark.parametrize("endpoint", ["http://me:a-password@127.0.0.1:1", "me:a-password@127.0.0.1:1"])
def test_a_password_in_the_endpoint_of_the_environment_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, server: S3Server, folder: Path, endpoint: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    refused = piped(folder, b"", "segment", "create", NAME, "--chunks", PLACE)
    assert (refused.code, is_one_line(refused.err)) == (1, True)
    assert "the endpoint of S3 must not contain a user name or a password: write" in refused.err
    assert "a-password" not in refused.err + refused.out


def test_a_config_file_and_the_option_must_not_contradict_each_other(
    server: S3Server, folder: Path, run: Run
) -> None:
    config = folder.with_name("tierlog.toml")
    config.write_text(f'chunks = "{PLACE}"\n[s3]\nendpoint = "{server.url}"\n')
    refused = run("segment", "create", NAME, "--config", str(config), "--chunks", "s3://another")
    assert f"--chunks is s3://another, but {config} has {PLACE}" in refused.err

    assert run("segment", "create", NAME, "--config", str(config)).code == 0
    assert f'endpoint = "{server.url}"' in (folder / "wal" / "chunks").read_text()


def test_p8_no_copy_is_made_in_another_store_of_a_bucket(server: S3Server, folder: Path, run: Run) -> None:
    make_store(folder)

    async def make_other() -> None:
        machine = BucketMachine(folder.with_name("cache"), server)
        async with machine.open(OTHER) as store:
            await store.create_segment(NAME)
            await store.flush()

    anyio.run(make_other)
    before = set(server.objects())
    for inner in ("", "/wal/x", "/lts", "/lts/a"):
        refused = run("backup", "first", "--copy-to", f"{OTHER}{inner}")
        assert (refused.code, is_one_line(refused.err)) == (1, True)
        expected = f"is inside the store {OTHER}/: name that" if inner else f"{OTHER}/ is a store: copy to"
        assert expected in refused.err
    assert set(server.objects()) == before
    assert json.loads(run("backup", "ls", "--json").out) == []
    # Beside it there is room, also for the next one.
    for name in ("second", "third"):
        assert run("backup", name, "--copy-to", f"{OTHER}-copies").code == 0


def test_no_backup_is_restored_into_another_store(
    server: S3Server, folder: Path, run: Run, tmp_path: Path
) -> None:
    make_store(folder)
    copies, new = str(tmp_path / "copies"), tmp_path / "new"
    assert run("backup", "first", "--copy-to", copies).code == 0

    async def make_other() -> None:
        async with BucketMachine(folder.with_name("cache"), server).open(OTHER) as store:
            await store.create_segment(NAME)
            await store.flush()

    anyio.run(make_other)
    before = set(server.objects())
    for inner in (folder / "new", folder / "lts" / "new"):
        refused = run("restore", "first", "--from", copies, "--data", str(inner))
        assert (refused.code, is_one_line(refused.err), inner.exists()) == (1, True, False)
        assert f"{inner} is inside the " in refused.err
    inside = f"{OTHER}/new"
    refused = run("restore", "first", "--from", copies, "--data", str(new), "--chunks", inside)
    assert (refused.code, is_one_line(refused.err), new.exists()) == (1, True, False)
    assert f"{inside}/ is inside the store {OTHER}/: name that one" in refused.err
    assert set(server.objects()) == before


def test_v14_a_recovery_does_not_shut_a_service_out_without_a_word(
    server: S3Server, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_SERVER_LEASE", "1 s")
    machine = BucketMachine(folder.with_name("cache"), server)

    async def recover_beside() -> None:
        async with machine.open(OTHER) as store:
            await store.create_segment(NAME)
            await store.flush()
        objects = S3Objects(S3Location(BUCKET, "stores/other/"), S3Options(endpoint=server.url))
        await objects.open()
        coordination = ObjectCoordination(objects, "", system_world())
        identity = await identify_shared(
            coordination, anyio.lowlevel.checkpoint, None, machine.settings(), system_world()
        )
        command = ("recover", "--from-lts", "--chunks", f"{OTHER}/lts")
        async with nobody_serves(coordination, identity, b"owner-owner-owne", 1.0):
            refused = await anyio.to_thread.run_sync(lambda: run(*command))
            assert (refused.code, "--take-over" in refused.err) == (1, True)
            assert f"error: {OTHER}/ is in a service, which process {os.getpid()}" in refused.err
            done = await anyio.to_thread.run_sync(lambda: run(*command, "--take-over"))
            assert done.code == 0
        await objects.close()

    anyio.run(recover_beside)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_a_service_keeps_its_chunks_in_the_bucket(server: S3Server, folder: Path, run: Run) -> None:
    with SyncOwnService(folder, "--chunks", PLACE, hosts=1, containers=1) as service:
        service.settle()
        url = f"--url={service.url}"
        for arguments, data in ((("create", NAME), b""), (("append", NAME), b"through the service")):
            command = [sys.executable, "-m", "tierlog", "segment", *arguments, url]
            done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=scaled(30))
            assert (done.returncode, done.stderr) == (0, b"")
        refused = run("backup", "first", "--copy-to", COPY)
        assert f"use --url {service.url}" in refused.err
        assert run("backup", "first", "--copy-to", COPY, url).code == 0
        assert service.stop() == 0

    assert [each["name"] for each in json.loads(run("backup", "ls", "--from", COPY, "--json").out)] == [
        "first"
    ]
    report = json.loads(run("doctor", "--json").out)
    assert report["sound"]
    assert report["containers"][0]["element"]
    assert any("/_system/" in key for key in server.objects())


def test_a_service_without_its_bucket_reports_it_and_starts_no_host(server: S3Server, folder: Path) -> None:
    server.remove_bucket()
    command = [
        sys.executable,
        "-m",
        "tierlog",
        "serve",
        str(folder),
        "--listen=127.0.0.1:0",
        "--chunks",
        PLACE,
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(30),
        env=os.environ,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"error: there is no bucket chunks .*; make it", done.stderr)
    assert "host" not in done.stderr.replace(server.url, "")
