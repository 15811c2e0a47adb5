"""The tools on a store whose long-term storage is a bucket: defragment, import, export, back up, restore."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import anyio
import pytest

from support.command_line import NAME, Run, is_one_line
from support.legacy_layout import write_legacy
from support.s3 import s3_storage
from support.s3_server import BUCKET, Fault, S3Server
from tierlog.actors.cli import running

PREFIX = "a-store/"
PLACE = f"s3://{BUCKET}/{PREFIX}"
COPY = f"s3://{BUCKET}/copy"


@pytest.fixture
def store(server: S3Server, run: Run, folder: Path) -> None:
    """An empty segment of a store in the bucket, of one container: each costs requests in each command."""
    one = folder.with_name("one.toml")
    one.write_text("containers = 1\n")
    assert run("segment", "create", NAME, "--chunks", PLACE, "--config", str(one)).code == 0


def objects(server: S3Server) -> dict[str, bytes]:
    """What is in the bucket, by chunk name."""
    return {key.removeprefix(PREFIX): data for key, data in server.objects().items()}


def chunks_of(run: Run, name: str) -> list[str]:
    return [each["name"] for each in json.loads(run("chunks", "layout", name, "--json").out)["chunks"]]


def append_and_flush(run: Run, *texts: str) -> None:
    for text in texts:
        assert run("segment", "append", NAME, "--data-text", text).code == 0
        assert run("chunks", "defrag", NAME).code == 0  # it flushes: the next owner begins another chunk


def test_segments_of_the_legacy_layout_are_imported(store: None, server: S3Server, run: Run) -> None:
    async def write() -> None:
        chunks = s3_storage(server.url, PREFIX)
        await chunks.open()
        await write_legacy(chunks, "app/one", b"0123", b"45", sealed=True)
        await write_legacy(chunks, "app/two", b"abc")
        await chunks.close()

    anyio.run(write)
    done = json.loads(run("import", "--all", "--json").out)
    assert [(each["name"], each["outcome"]) for each in done] == [
        ("app/one", "imported"),
        ("app/two", "imported"),
    ]
    assert run("segment", "read", "app/one").out == "012345"
    assert json.loads(run("segment", "info", "app/one", "--json").out)["sealed"]
    assert run("chunks", "verify").code == 0


def test_an_export_is_a_header_in_the_bucket(store: None, server: S3Server, run: Run) -> None:
    append_and_flush(run, "flushed ", "tail")
    assert run("segment", "seal", NAME).code == 0
    assert (run("export", NAME).code, run("export", "--all").code) == (0, 0)

    found = objects(server)
    size, *items = found[f"{NAME}$header"].decode().removesuffix("&").split("&")
    assert size.startswith("maxsize=")
    assert b"".join(found[item.partition("=")[2]] for item in items) == b"flushed tail"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_backup_is_restored(store: None, run: Run, folder: Path, tmp_path: Path, elsewhere: bool) -> None:
    append_and_flush(run, "kept")
    to = ("--copy-to", COPY) if elsewhere else ()
    source = ("--from", COPY) if elsewhere else ()
    assert run("backup", "first", *to).code == 0
    assert [each["name"] for each in json.loads(run("backup", "ls", *source, "--json").out)] == ["first"]
    append_and_flush(run, " and lost")
    shutil.rmtree(folder)

    if not elsewhere:
        lost = run("restore", "first")
        assert (lost.code, is_one_line(lost.err)) == (1, True)
    place = f"s3://{BUCKET}/new" if elsewhere else PLACE
    done = run("restore", "first", "--chunks", place, *source)
    assert (done.code, done.err) == (0, "")
    assert run("segment", "read", NAME).out == "kept"
    assert run("doctor", "--deep").code == 0


@pytest.mark.parametrize("place", [COPY, f"{COPY}/inner"])
def test_p8_no_store_is_made_among_copies(store: None, run: Run, folder: Path, place: str) -> None:
    append_and_flush(run, "kept")
    assert run("backup", "first", "--copy-to", COPY).code == 0
    shutil.rmtree(folder)
    done = run("restore", "first", "--from", COPY, "--chunks", place)
    assert (done.code, is_one_line(done.err)) == (1, True)
    assert "restore into another prefix or bucket" in done.err
    assert not folder.exists()


@pytest.mark.parametrize("place", [PLACE, PLACE.rstrip("/"), f"{PLACE}inner", f"s3://{BUCKET}"])
def test_p7_a_copy_within_long_term_storage_is_refused_before_there_is_a_backup(
    store: None, run: Run, place: str
) -> None:
    done = run("backup", "first", "--copy-to", place)
    assert (done.code, "or one is within the other" in done.err) == (1, True)
    assert json.loads(run("backup", "ls", "--json").out) == []


@pytest.mark.parametrize(
    "arguments", [("segment", "ls"), ("segment", "seal", NAME), ("backup", "ls", "--from")]
)
def test_a_command_says_on_a_terminal_that_it_waits_for_the_bucket(
    store: None, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """One that does not answer is asked for a minute."""
    monkeypatch.setattr(running, "_NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    opened, place = (COPY, [COPY]) if arguments[-1] == "--from" else (folder, [])
    done = run(*arguments, *place)
    assert (done.code, done.err) == (0, f"waiting for {opened}: no answer yet\n")


def test_a_place_without_backups_is_shown_as_such(store: None, run: Run) -> None:
    assert run("backup", "ls", "--from", COPY).out.splitlines()[-1] == f"no backup in {COPY}"


def test_a_bucket_that_goes_away_under_a_copy_ends_it_with_what_to_do(
    store: None, server: S3Server, run: Run
) -> None:
    append_and_flush(run, "kept")
    server.fail(Fault("PutObject", "copy/containers/", times=1_000, drop=True))
    failed = run("backup", "first", "--copy-to", COPY)
    assert (failed.code, is_one_line(failed.err)) == (1, True)
    assert "run the same command again to go on" in failed.err

    server.heal()
    assert run("backup", "first", "--copy-to", COPY).code == 0
    assert run("lts", "verify", COPY).code == 0
