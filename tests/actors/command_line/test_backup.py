"""Backups and their restore, as a shell sees them (rules P1 to P8)."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.command_line import NAME, Run, is_one_line, make_store
from support.folders import flip_bit
from support.old_backups import old_backup
from tierlog import StoreConfig, open_store
from tierlog.actors.cli.copy_place import opened_place
from tierlog.actors.folder.paths import StoreFolder
from tierlog.actors.folder.restore_folder import begin_restore, only_restore
from tierlog.actors.maintenance.replaced_logs import logs_moved_away
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.base.files import FileHandle, Program
from tierlog.storage_backends.files.local import LocalFiles


def listed(run: Run, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("backup", "ls", "--json", *arguments).out)
    return found


def test_the_help_of_restore_promises_what_a_restored_container_does(run: Run) -> None:
    """G4: it deletes nothing that it does not know until it is confirmed."""
    help_text = " ".join(run("restore", "--help").out.replace("│", " ").split())
    assert "are kept until tierlog gc sweep --confirm" in help_text
    assert "deleted" not in help_text


def test_a_backup_is_made_listed_restored_and_removed(run: Run, folder: Path) -> None:
    make_store(folder)
    run("table", "create", "app/table")
    run("table", "put", "app/table", "key", "--data-text", "value")
    assert run("backup", "first").out == "backup first: complete\n"
    refused = run("backup", "first")
    assert (refused.code, "already a backup 'first'" in refused.err) == (1, True)
    run("segment", "append", NAME, "--data-text", "newer")
    run("table", "put", "app/table", "key", "--data-text", "newer")
    shutil.rmtree(folder / "wal")
    assert [(each["name"], each["problem"]) for each in listed(run)] == [("first", "")]
    done = run("restore", "first")

    assert (done.code, done.err) == (0, "")
    assert "2 segments, as of backup first; everything newer is lost" in done.out
    assert run("segment", "read", NAME).out == "flushed tail\n"
    assert run("table", "get", "app/table", "key").out == "value"
    assert json.loads(run("segment", "info", NAME, "--json").out)["attributes"] == {"colour": 7}
    refused = run("restore", "first")
    assert (refused.code, is_one_line(refused.err)) == (1, True)
    assert "backup first of" in run("doctor").out
    assert run("backup", "rm", "first").out == "removed backup first\n"
    assert run("backup", "rm", "first").code == 1
    assert listed(run) == []
    assert run("doctor").code == 0


def test_logs_are_moved_away_after_a_question(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(folder)
    run("backup", "first")
    run("segment", "append", NAME, "--data-text", "newer")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    refused = run("restore", "first", "--replace")
    assert (refused.code, "add --yes" in refused.err) == (1, True)
    assert run("segment", "read", NAME).out == "flushed tail\nnewer"
    failed = run("restore", "none", "--replace", "--yes")
    assert (failed.code, "no backup 'none': the latest are first" in failed.err) == (1, True)
    assert run("segment", "read", NAME).out == "flushed tail\nnewer"
    assert run("restore", "first", "--replace", "--yes").code == 0
    assert run("segment", "read", NAME).out == "flushed tail\n"
    assert len([path for path in folder.iterdir() if path.name.startswith("wal-before-")]) == 1
    assert run("doctor").code == 0


@pytest.mark.parametrize("chunks", ["lts", "bucket"])
def test_a_refusal_names_the_logs_that_a_killed_restore_moved_away(
    run: Run, folder: Path, chunks: str
) -> None:
    make_store(folder)
    moved = folder / "wal-before-1"
    (folder / "wal").rename(moved)
    if chunks == "bucket":
        (folder / "lts").rename(folder.parent / "chunks of the bucket")

    for command in (("segment", "ls"), ("segment", "create", "another")):
        refused = run(*command)
        assert (refused.code, is_one_line(refused.err)) == (1, True)
        assert f"put wal/ back (it may be {moved}, if a restore was killed)" in refused.err


def test_a_folder_that_is_open_keeps_its_logs(run: Run, folder: Path) -> None:
    make_store(folder)
    run("backup", "first")

    async def restore_beside() -> None:
        async with open_store(folder):
            done = await anyio.to_thread.run_sync(lambda: run("restore", "first", "--replace", "--yes"))
            assert (done.code, "is open in process" in done.err) == (1, True)
            assert done.err.endswith(": stop that process first\n")

    anyio.run(restore_beside)
    assert not [path for path in folder.iterdir() if path.name.startswith("wal-before-")]


def test_a_restore_beside_one_that_has_moved_the_logs_away_waits(run: Run, folder: Path) -> None:
    make_store(folder)
    run("backup", "first")

    async def restore_beside() -> None:
        files, there = LocalFiles(), StoreFolder(str(folder))
        async with logs_moved_away(there, files, system_world()):
            async with only_restore(there, files, StoreConfig()):
                done = await anyio.to_thread.run_sync(lambda: run("restore", "first", "--replace", "--yes"))
                assert (done.code, f"process {os.getpid()} is restoring or recovering" in done.err) == (
                    1,
                    True,
                )
            raise InterruptedError

    with pytest.raises(InterruptedError):
        anyio.run(restore_beside)
    assert run("doctor").code == 0


@pytest.mark.parametrize("arguments", [("restore", "first"), ("recover", "--from-lts")])
def test_a_store_with_logs_is_restored_with_replace_only(
    run: Run, folder: Path, arguments: tuple[str, ...]
) -> None:
    make_store(folder)
    run("backup", "first")
    refused = run(*arguments)
    assert (refused.code, "`tierlog restore --replace` goes back to a backup" in refused.err) == (1, True)


@pytest.mark.parametrize(
    "arguments", [("restore", "b", "--data"), ("recover", "--from-lts", "--data"), ("backup", "ls", "--from")]
)
def test_a_file_is_no_folder_of_a_store(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "file").touch()
    refused = run(*arguments, str(tmp_path / "file"))
    assert (refused.code, refused.err.startswith(f"error: {tmp_path}/file is a file: ")) == (1, True)


def test_a_backup_that_is_not_there_is_refused_with_where_the_others_are(run: Run, folder: Path) -> None:
    make_store(folder)
    assert "'monday': `tierlog backup ls` lists them" in run("backup", "rm", "monday").err


@pytest.mark.parametrize("command", ["recover", "restore", "copy"])
def test_who_interrupts_it_reads_that_it_is_to_be_run_again(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    make_store(folder)
    run("backup", "first")

    def interrupted(there: StoreFolder) -> Program[FileHandle]:
        os.kill(os.getpid(), signal.SIGINT)
        return (yield from begin_restore(there))

    async def copy(*_: object, verify: bool = False) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep_forever()

    monkeypatch.setattr("tierlog.actors.folder.restore_folder.begin_restore", interrupted)
    monkeypatch.setattr("tierlog.actors.maintenance.backup_copy.copy_backup", copy)
    if command == "copy":
        done = run("backup", "first", "--copy-to", str(tmp_path / "place"))
    else:
        shutil.rmtree(folder / "wal")
        done = run("recover", "--from-lts") if command == "recover" else run("restore", "first")
    assert (done.code, done.out) == (130, "")
    assert done.err == "interrupted: run the same command again to go on\n"


def test_a_backup_is_copied_and_restored_elsewhere(run: Run, folder: Path, tmp_path: Path) -> None:
    make_store(folder)
    place, other = str(tmp_path / "place"), str(tmp_path / "other")
    copied = json.loads(run("backup", "first", "--copy-to", place, "--json").out)
    assert copied["copied_objects"] == copied["objects"] > 0
    again = run("backup", "first", "--copy-to", place)
    assert again.out == (
        f"backup first: copied 0 objects with 0 B, {copied['objects']} were there\n"
        "2 of them were verified by an earlier copy and not read again: only --verify finds what was damaged "
        "there since\n"
    )
    assert [each["name"] for each in listed(run, "--from", place)] == ["first"]
    assert run("lts", "cat", NAME, "--place", place).code in (0, 2)
    shutil.rmtree(folder)
    done = run("restore", "first", "--from", place, "--data", other)
    assert (done.code, done.err) == (0, "")
    assert run("segment", "read", NAME, "--data", other).out == "flushed tail\n"
    assert run("verify", "--deep", "--data", other).code == 0


def test_what_is_damaged_in_a_copy_is_found_and_mended_with_verify(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    make_store(folder)
    place = tmp_path / "place"
    assert run("backup", "first", "--copy-to", str(place)).code == 0
    chunk = min((place / "containers").rglob("*-*"))
    before = chunk.read_bytes()
    chunk.write_bytes(bytes([before[0] ^ 1]) + before[1:])
    assert json.loads(run("backup", "first", "--copy-to", str(place), "--json").out)["unread_objects"] == 2
    record = place / "_system/pins/first"
    record.write_bytes(record.read_bytes()[:-1])
    done = json.loads(run("backup", "first", "--copy-to", str(place), "--verify", "--json").out)
    assert (done["unread_objects"], done["copied_objects"]) == (0, 1)
    assert chunk.read_bytes() == before
    assert run("restore", "first", "--from", str(place), "--data", str(tmp_path / "other")).code == 0


def test_verify_without_a_place_is_refused(run: Run, folder: Path) -> None:
    make_store(folder)
    refused = run("backup", "first", "--verify")
    assert (refused.code, "name its place with --copy-to" in " ".join(refused.err.split())) == (2, True)


def test_p8_another_backup_of_a_name_that_a_place_has_is_refused_before_it_is_made(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    make_store(folder)
    place = str(tmp_path / "place")
    run("backup", "weekly", "--copy-to", place)
    run("backup", "rm", "weekly")
    refused = run("backup", "weekly", "--copy-to", place)
    assert (refused.code, "make one of another name" in refused.err) == (1, True)
    assert listed(run) == []
    run("backup", "weekly")
    assert "make one of another name" in run("backup", "weekly", "--copy-to", place).err


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("store/lts", "the same folder, or one is within the other"),
        ("store/lts/inner", "the same folder, or one is within the other"),
        ("store/wal", "the same folder, or one is within the other"),
        ("store", "the same folder, or one is within the other"),
        (".", "the same folder, or one is within the other"),
        ("link", "the same folder, or one is within the other"),
        ("other/lts", "is in the folder of a store"),
        ("other/inner", "is in the folder of a store"),
        ("documents", "has other files, such as report"),
        ("report", "no folder can be made at"),
        ("/proc/nowhere", "no folder can be made at /proc/nowhere"),
        ("copies-of-other", "there are backups or data of store"),
        ("ftp://host/path", "backups are not copied to ftp://"),
        ("S3://bucket/path", "backups are not copied to S3://"),
        ("s3:/bucket/path", "write that, or ./s3:/bucket/path for a folder"),
        ("", "--copy-to is empty"),
    ],
)
def test_p8_a_place_that_cannot_have_copies_is_refused_before_there_is_a_backup(
    run: Run, folder: Path, tmp_path: Path, place: str, problem: str
) -> None:
    make_store(folder)
    run("segment", "create", "x", "--data", str(tmp_path / "other"))
    assert run("backup", "b", "--data", "other", "--copy-to", str(tmp_path / "copies-of-other")).code == 0
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents/report").write_text("hello")
    (tmp_path / "report").write_text("hello")
    (tmp_path / "link").symlink_to(folder / "lts")
    before = sorted(tmp_path.rglob("*"))

    done = run("backup", "first", "--copy-to", place.replace("store", folder.name))

    assert (done.code, problem in done.err) == (1, True), done.err
    assert "remove this new wal/" not in done.err
    assert sorted(tmp_path.rglob("*")) == before
    assert listed(run) == []


@pytest.mark.parametrize("data", ["place", "place/inner", "link"])
def test_p8_no_store_is_restored_among_the_copies(run: Run, folder: Path, tmp_path: Path, data: str) -> None:
    """Later backups could not be copied there."""
    make_store(folder)
    assert run("backup", "first", "--copy-to", "place").code == 0
    (tmp_path / "link").symlink_to("place")
    before = sorted(tmp_path.rglob("*"))

    refused = run("restore", "first", "--from", "place", "--data", data)

    assert (refused.code, "restore into a folder elsewhere" in refused.err) == (1, True), refused.err
    assert sorted(tmp_path.rglob("*")) == before
    assert run("backup", "second", "--copy-to", "place").code == 0


def test_p7_one_process_at_a_time_copies_into_a_folder(run: Run, folder: Path, tmp_path: Path) -> None:
    make_store(folder)
    place = str(tmp_path / "place")

    async def copy_beside() -> None:
        async with opened_place(place, None, write=True):
            done = await anyio.to_thread.run_sync(lambda: run("backup", "first", "--copy-to", place))
            assert (done.code, f"is copying a backup into {place}: wait" in done.err) == (1, True)

    anyio.run(copy_beside)
    assert listed(run) == []
    assert run("backup", "first", "--copy-to", place).code == 0
    assert not [each.name for each in (tmp_path / "place").iterdir() if each.name == ".copying"]


def test_a_place_with_lost_and_found_only_is_empty(run: Run, folder: Path, tmp_path: Path) -> None:
    make_store(folder)
    (tmp_path / "mount/lost+found").mkdir(parents=True)
    assert run("backup", "first", "--copy-to", str(tmp_path / "mount")).code == 0


def test_a_backup_that_cannot_be_restored_is_shown_with_its_problem(run: Run, folder: Path) -> None:
    make_store(folder)
    run("backup", "first")
    flip_bit(folder / "lts/_system/pins/first", 5)
    [each] = listed(run)
    assert "_system/pins/first" in each["problem"]
    done = run("doctor")
    assert (done.code, "backup first cannot be restored" in done.out) == (1, True)
    assert run("backup", "rm", "first").code == 0
    assert run("doctor").code == 0


def test_a_record_whose_name_no_backup_can_have_is_to_be_removed_by_hand(run: Run, folder: Path) -> None:
    make_store(folder)
    (folder / "lts/_system/pins/sub").mkdir(parents=True)
    (folder / "lts/_system/pins/sub/x").write_bytes(b"junk")
    done = run("doctor")
    assert (done.code, "backup rm" in done.out) == (1, False)
    assert "remove the object" in done.out.replace("\n", " ")
    assert run("backup", "rm", "sub/x").code == 1
    (folder / "lts/_system/pins/sub/x").unlink()
    assert run("doctor").code == 0


def test_what_only_a_backup_needs_is_shown_as_such(run: Run, folder: Path) -> None:
    make_store(folder)
    run("backup", "first")
    run("segment", "delete", NAME)
    run("export", "--all")  # flushes
    uses = {line.split()[2] for line in run("chunks", "ls").out.splitlines()[1:] if "containers/" in line}
    assert "backup" in uses
    assert run("chunks", "ls", "--unreferenced").out.count("containers/0000/") == 0


def test_a_backup_of_an_earlier_version_is_listed_and_restored(run: Run, folder: Path) -> None:
    make_store(folder)
    old_backup(folder, "old")
    refused = run("backup", "old")
    assert (refused.code, "already a backup 'old'" in refused.err) == (1, True)
    run("segment", "append", NAME, "--data-text", "newer")
    shutil.rmtree(folder / "wal")
    assert [each["name"] for each in listed(run)] == ["old"]
    done = run("restore", "old", "--deep")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("1 segment with 2 chunks and 13 B\n")
    assert run("segment", "read", NAME).out == "flushed tail\n"


def test_incomplete_segments_of_an_earlier_versions_backup_are_named(run: Run, folder: Path) -> None:
    make_store(folder)
    old_backup(folder, "b")
    shutil.rmtree(folder / "wal")
    shutil.rmtree(folder / "lts" / "containers")

    assert is_one_line(run("restore", "b").err)
    done = run("restore", "b", "--partial", "--json")
    assert (done.code, [lost["segment"] for lost in json.loads(done.out)["lost"]]) == (1, [NAME])
    assert run("segment", "ls").out == ""


@pytest.mark.parametrize("flag", ["--deep", "--partial"])
def test_options_of_earlier_versions_backups_are_refused_for_others(
    run: Run, folder: Path, flag: str
) -> None:
    make_store(folder)
    run("backup", "first")
    shutil.rmtree(folder / "wal")
    done = run("restore", "first", flag)
    assert (done.code, "leave them out" in done.err) == (1, True)


def test_a_restore_from_a_copy_that_is_refused_leaves_nothing_behind(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    """Neither without the backup, nor in a folder of something else, which no store may be opened in."""
    make_store(folder)
    place, new, documents = str(tmp_path / "place"), tmp_path / "new", tmp_path / "documents"
    assert run("backup", "first", "--copy-to", place).code == 0
    refused = run("restore", "TYPO", "--from", place, "--data", str(new))
    assert (refused.code, "there is no backup 'TYPO'" in refused.err) == (1, True)
    assert not new.exists()

    documents.mkdir()
    (documents / "report").touch()
    refused = run("restore", "first", "--from", place, "--data", str(documents))
    assert (refused.code, "holds other files, such as 'report'" in refused.err) == (1, True)
    assert [path.name for path in documents.iterdir()] == ["report"]


def test_an_opening_where_a_restore_was_killed_says_to_run_it_again(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    make_store(folder)
    assert run("backup", "first", "--copy-to", str(tmp_path / "place")).code == 0
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "place", other / "lts")
    refused = run("segment", "create", "s", "--data", str(other))
    assert "If a `tierlog restore --from` was interrupted, run it again" in refused.err
    done = run("restore", "first", "--from", str(tmp_path / "place"), "--data", str(other))
    assert (done.code, done.err) == (0, "")


def test_a_restore_without_a_backup_is_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    (folder / "lts").mkdir(parents=True)
    for arguments in (
        ("restore", "b"),
        ("restore", "b", "--from", str(tmp_path / "none")),
        ("restore", "b", "--data", str(tmp_path / "none")),
    ):
        done = run(*arguments)
        assert (done.code, is_one_line(done.err)) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    assert [path.name for path in folder.iterdir()] == ["lts"]
