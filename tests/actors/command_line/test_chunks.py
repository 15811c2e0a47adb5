"""Commands about chunks: what is listed, laid out, verified and joined."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

import tierlog
from support.command_line import NAME, Run, is_one_line
from support.folders import chunk_files, fingerprint, flip_bit
from support.legacy_layout import write_legacy
from support.old_backups import old_backup
from tierlog import Unavailable
from tierlog.actors.cli import output
from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance import report
from tierlog.actors.maintenance.transfer import import_segment
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.store import RollingSizes
from tierlog.storage_backends.base.chunk_storage import ChunkInfo
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles


@pytest.fixture
def store(folder: Path) -> Path:
    """A segment of three chunks and an unflushed tail, one that was never flushed, an imported one, and a
    stranger."""

    async def make() -> None:
        chunks = FileSystemChunkStorage(LocalFiles(), str(folder / "lts"), system_world())
        await chunks.open()
        await write_legacy(chunks, "app/old", b"0123", b"45")
        async with tierlog.open_store(folder, containers=1):
            pass
        shutil.copytree(folder / "wal" / "0000", folder.with_name("old"))
        async with tierlog.open_store(folder, containers=1) as store:
            store._rolling_sizes = RollingSizes(10)  # smaller than a configuration may say
            await store.create_segment(NAME)
            await store.append(NAME, b"0123456789" * 2 + b"01234")
            await import_segment(store, "app/old", no_progress)
            await store.flush()
            await store.append(NAME, b"tail")
            await store.create_segment("app/new")

    anyio.run(make)
    loose = folder / "lts" / "containers" / "0000" / f"{7:016x}"
    loose.mkdir()
    (loose / f"{1:016x}-{0:016x}-{0:032x}").write_bytes(b"loose")
    return folder


def test_chunks_are_listed_with_their_kind(run: Run, store: Path) -> None:
    before = fingerprint(store)
    listed = json.loads(run("chunks", "ls", "--json").out)
    uses = {
        (each["use"], each["segment"], each["length"], each["committed"], each["start"]) for each in listed
    }

    assert ("referenced", NAME, 10, 10, 10) in uses
    assert ("referenced", "app/old", 2, 2, 4) in uses
    assert ("unreferenced", "", 5, 0, 0) in uses
    assert {name for each in listed if each["use"] == "other" for name in [each["name"]]} == {
        "app/old$header"
    }
    assert {each["name"].rpartition("/")[0] for each in listed if each["use"] == "system"} == {
        "_system",
        "_system/containers/0000/journal",
        "_system/containers/0000/runs",
        "_system/imports",
    }
    assert [each["name"] for each in listed] == sorted(each["name"] for each in listed)

    assert len(run("chunks", "ls", "app/").out.splitlines()) == 1 + 3
    assert len(run("chunks", "ls", "--unreferenced").out.splitlines()) == 1 + 1
    assert fingerprint(store) == before


def test_chunks_are_printed_as_they_come(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was printed before a failure stays. One that is missing comes in its place."""
    listed = json.loads(run("chunks", "ls", "--json").out)
    lost = next(each for each in listed if each["use"] == "referenced")
    (store / "lts" / lost["name"]).unlink()
    lost.update(use="missing", length=0)
    monkeypatch.setattr(report, "_PAGE", 2)
    monkeypatch.setattr(output, "_FITTED_MAX", 1)
    assert json.loads(run("chunks", "ls", "--json").out) == listed
    names = [each["name"] for each in listed]
    assert [line.split()[-1] for line in run("chunks", "ls").out.splitlines()] == ["name", *names]

    whole = FileSystemChunkStorage.list

    async def list_some(*arguments: Any) -> AsyncGenerator[ChunkInfo, None]:
        async with aclosing(whole(*arguments)) as found:
            left = 5
            async for info in found:
                if not left:
                    raise Unavailable("on the way")
                left -= 1
                yield info

    monkeypatch.setattr(FileSystemChunkStorage, "list", list_some)
    failed = run("chunks", "ls")
    assert failed.code == 1
    assert [line.split()[-1] for line in failed.out.splitlines()] == ["name", *names[:4]]
    failed = run("chunks", "ls", "--json")
    assert (failed.code, failed.out.endswith("]\n"), failed.out.count('"name"')) == (1, False, 4)


def test_a_layout_is_the_chain_of_a_segment(run: Run, store: Path) -> None:
    shown = json.loads(run("chunks", "layout", NAME, "--json").out)

    assert [(each["start"], each["length"]) for each in shown["chunks"]] == [(0, 10), (10, 10), (20, 5)]
    assert (shown["info"]["length"], shown["record"]["length"], shown["record"]["rolling_size"]) == (
        29,
        25,
        10,
    )
    reported = run("chunks", "layout", NAME).out
    assert "29 bytes from 0 on, 4 not flushed" in reported
    assert "3 chunks, open, rolling at 10 bytes" in reported
    assert "nothing of it is flushed yet" in run("chunks", "layout", "app/new").out
    assert run("chunks", "layout", "no/such").code == 1


def test_whole_chunks_are_verified(run: Run, store: Path) -> None:
    before = fingerprint(store)
    done = run("chunks", "verify")

    assert done.code == 0
    assert done.out.splitlines() == [
        "1 object with 5 B is unreferenced",
        "read 5 chunks of 2 segments with 31 B",
        "sound",
    ]
    assert run("doctor").code == 0
    assert fingerprint(store) == before


def test_every_kind_of_damage_is_found_and_reported(run: Run, store: Path) -> None:
    first, second, third = (
        path
        for path in chunk_files(store)
        if path.stat().st_size in (10, 5) and path.read_bytes() != b"loose"
    )
    first.unlink()
    flip_bit(second, 3)
    os.truncate(third, 1)
    (store / "lts" / "app" / "old$offset.0").write_bytes(b"0xxx")
    done = run("chunks", "verify", "--json")
    report = json.loads(done.out)

    assert (done.code, report["sound"]) == (1, False)
    assert sorted(problem["segment"] for problem in report["problems"]) == [NAME, NAME, NAME, "app/old"]
    assert {
        word
        for problem in report["problems"]
        for word in ("missing", "shorter", "checksum")
        if word in problem["message"]
    } == {"missing", "shorter", "checksum"}
    assert run("chunks", "verify", "app/old").out.splitlines()[-1] == "not sound, problems: 1"
    assert run("chunks", "verify", "app/new").code == 0
    assert "missing" in run("chunks", "ls").out
    assert is_one_line(run("chunks", "verify", "no/such").err)


def test_small_chunks_are_joined(run: Run, folder: Path) -> None:
    run("segment", "create", NAME)
    for text in ("one ", "two ", "three"):
        run("segment", "append", NAME, "--data-text", text)
        run("chunks", "defrag", NAME)  # it flushes: the next owner begins another chunk
    run("segment", "seal", NAME)
    done = run("chunks", "defrag", "--all", "--json")

    assert done.code == 0
    assert json.loads(done.out)[0]["segment"] == NAME
    assert len(json.loads(run("chunks", "layout", NAME, "--json").out)["chunks"]) == 1
    assert run("segment", "read", NAME).out == "one two three"
    assert run("chunks", "verify").code == 0


def test_a_selection_of_segments_is_required(run: Run, folder: Path) -> None:
    run("segment", "create", NAME)
    for command in (("chunks", "defrag"), ("export",), ("import",), ("chunks", "defrag", NAME, "--all")):
        done = run(*command)
        assert (done.code, is_one_line(done.err)) == (2, True)


def test_truncated_bytes_do_not_count_as_unflushed(run: Run) -> None:
    run("segment", "create", NAME)
    run("segment", "append", NAME, "--data-text", "0123456789")
    run("segment", "truncate", NAME, "6")

    assert "1 segment with 4 B, 4 B of it unflushed" in run("doctor").out
    assert "4 bytes from 6 on, 4 not flushed" in run("chunks", "layout", NAME).out


@pytest.fixture
def adopted(store: Path) -> Path:
    """The store has a log from before its first segment, and was adopted with it."""

    async def adopt() -> None:
        async with tierlog.open_store(store, containers=1, adopt=True) as opened:
            await opened.create_segment("app/other")

    shutil.rmtree(store / "wal" / "0000")
    store.with_name("old").rename(store / "wal" / "0000")
    anyio.run(adopt)
    return store


def chunks_and_runs(folder: Path) -> list[Path]:
    return chunk_files(folder) + list(folder.glob("lts/_system/containers/*/runs/*"))


def test_g4_what_confirming_lets_go_is_shown_and_nothing_is_confirmed_unasked(
    run: Run, adopted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = chunks_and_runs(adopted)
    assert len(kept) > len(chunk_files(adopted)) > 0
    assert "container 0 deletes no chunks: the folder was adopted" in run("doctor").out

    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    refused = run("gc", "sweep", "--confirm")
    assert "container 0 waits for a confirmation: the folder was adopted" in refused.out
    assert f"Let the store delete {len(kept)} unreferenced objects, " in refused.err
    assert refused.code == 1
    assert refused.err.endswith("error: nothing was confirmed\n")
    assert "deletes no chunks" in run("doctor").out


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_g4_a_script_without_yes_confirms_nothing(
    run: Run, adopted: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" if options else ""))

    refused = run("gc", "sweep", "--confirm", *options)

    assert (refused.code, refused.err.splitlines()) == (1, ["error: not confirmed: add --yes"])
    assert "deletes no chunks" in run("doctor").out


def test_g4_a_script_confirms_with_yes_and_only_once(run: Run, adopted: Path) -> None:
    [confirmed] = json.loads(run("gc", "sweep", "--confirm", "--yes", "--json").out)
    assert (confirmed["container"], confirmed["chunks"]) == (0, len(chunks_and_runs(adopted)))
    assert confirmed["bytes"] == sum(path.stat().st_size for path in chunks_and_runs(adopted))

    assert "deletes no chunks" not in run("doctor").out
    # It waits for its delay now, and nothing else.
    [left] = json.loads(run("gc", "sweep", "--json").out)
    assert (left["chunks"], left["reason"]) == (confirmed["chunks"], "")


@pytest.fixture
def copied(store: Path) -> Path:
    """A copy of the store, which was not opened since, under the path of the commands' folder."""
    original = store.rename(store.with_name("original"))
    shutil.copytree(original, store)
    return store


def test_g4_a_copied_folder_is_unconfirmed_before_its_first_opening(run: Run, copied: Path) -> None:
    before = fingerprint(copied)
    assert "container 0 deletes no chunks: the folder was moved from " in run("doctor").out
    assert fingerprint(copied) == before

    [confirmed] = json.loads(run("gc", "sweep", "--confirm", "--yes", "--json").out)
    assert (confirmed["container"], confirmed["chunks"]) == (0, 1)
    assert "deletes no chunks" not in run("doctor").out
    assert {each["reason"] for each in json.loads(run("gc", "sweep", "--json").out)} <= {""}


def test_m6_to_confirm_a_copy_puts_the_runs_that_long_term_storage_lacks(run: Run, copied: Path) -> None:
    """The command opens the copy for no longer than that, and what is opened later has been confirmed."""
    runs = {path: path.read_bytes() for path in copied.glob("lts/_system/containers/*/runs/*")}
    assert runs
    for path in runs:
        path.unlink()

    assert run("gc", "sweep", "--confirm", "--yes").code == 0
    assert {path: path.read_bytes() for path in runs} == runs
    assert run("doctor").code == 0


def test_what_nothing_refers_to_is_counted_alike_everywhere(run: Run, adopted: Path) -> None:
    listed = json.loads(run("chunks", "ls", "--unreferenced", "--json").out)
    verified = json.loads(run("chunks", "verify", "--json").out)
    [examined] = json.loads(run("doctor", "--json").out)["containers"]
    [unconfirmed] = json.loads(run("gc", "sweep", "--confirm", "--yes", "--json").out)
    assert any("/runs/" in each["name"] for each in listed)
    assert (unconfirmed["chunks"], unconfirmed["bytes"]) == (
        len(listed),
        sum(each["length"] for each in listed),
    )
    assert (verified["unreferenced"], verified["unreferenced_bytes"]) == (
        unconfirmed["chunks"],
        unconfirmed["bytes"],
    )
    assert examined["chunks_unreferenced"] == len(listed)


def test_g4_a_folder_whose_storage_another_one_claimed_is_refused(run: Run, store: Path) -> None:
    original = store.with_name("original")
    shutil.copytree(store / "wal", original)
    run("segment", "append", NAME, "--data-text", "on")
    shutil.rmtree(store / "wal")
    original.rename(store / "wal")
    refused = run("gc", "sweep", "--confirm")
    assert (refused.code, is_one_line(refused.err)) == (1, True)
    assert "was claimed" in refused.err
    assert "--adopt" in refused.err


def test_p5_what_backups_need_is_not_shown_for_deletion(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("segment", "create", NAME)
    for name in ("old", "newer"):
        run("segment", "append", NAME, "--data-text", name)
        assert run("backup", name).code == 0
    run("segment", "append", NAME, "--data-text", "newest")
    run("chunks", "defrag", NAME)
    assert run("restore", "old", "--replace", "--yes").code == 0
    assert run("gc", "sweep", "--confirm", "--yes").code == 0
    assert run("segment", "read", NAME).out == "old"
    for name, text in (("newer", "oldnewer"), ("old", "old")):
        assert run("restore", name, "--replace", "--yes").code == 0
        assert run("segment", "read", NAME).out == text
        assert run("doctor", "--deep").code == 0


def test_g4_backups_of_an_earlier_version_that_need_what_would_be_deleted_are_named(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("segment", "create", NAME)
    for name in ("old", "newer", "newest"):
        run("segment", "append", NAME, "--data-text", name)
        old_backup(folder, name)
    shutil.rmtree(folder / "wal")
    assert run("restore", "newer").code == 0

    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    shown = run("gc", "sweep", "--confirm").out
    assert "backup newest needs some of this, and cannot be restored without it" in shown
    assert "backup old " not in shown
    assert "backup newer " not in shown
    warning = "Backups of an earlier version in other folders are not looked at"
    assert warning in " ".join(shown.split())
    assert warning not in " ".join(run("gc", "sweep").out.split()), "nothing is deleted"
    found = json.loads(run("gc", "sweep", "--confirm", "--yes", "--json").out)
    assert {backup for each in found for backup in each["backups"]} == {"newest"}
