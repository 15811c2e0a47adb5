"""Wrong input, damage, and folders that are open: one line on stderr, an exit code, and a folder that stays
as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import tierlog
from support.command_line import NAME, Done, Run, is_one_line, make_store
from support.folders import chunk_files, fingerprint, flip_bit, newest_log_file

# --- wrong input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("noun", ["segment", "table"])
@pytest.mark.parametrize("name", ["a//b", os.fsdecode(b"a\xff"), "", "_system/x"])
def test_a_name_that_is_refused_makes_no_store(run: Run, folder: Path, noun: str, name: str) -> None:
    done = run(noun, "create", name)
    assert (done.code, is_one_line(done.err)) == (1, True)
    assert not folder.exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("segment", "reed", NAME), "No such command 'reed'"),
        (("segment", "read"), "Missing argument 'NAME'"),
        (("segment", "read", NAME, "--ofset", "1"), "--offset"),
        (("segment", "read", NAME, "--offset", "-1"), "'--offset': it must be at least 0;"),
        (("segment", "read", NAME, "--offset", "x"), "'--offset': it must be a whole number;"),
        (("segment", "read", NAME, "--offset", "9" * 5_000), "'--offset': it must have at most 40 digits;"),
        (
            ("segment", "append", NAME, "--writer", "w", "--event-number", str(1 << 63)),
            "'--event-number': it must be at most 9223372036854775807;",
        ),
        (("journal", "ls", "--container", "-1"), "'--container': it must be at least 0;"),
        (("journal", "show", "x"), "'CONTAINER': it must be a whole number;"),
        (("journal", "show", "0", "0"), "'ELEMENT': it must be at least 1;"),
        (("serve", "--hosts", "257"), "'--hosts': it must be at most 256;"),
        (("--log-level", "loud", "segment", "ls"), "): 'loud' is not one of 'auto', 'error'"),
        (
            ("segment", "create", NAME, "--url", "http://h", "--chunks", "s3://b/p"),
            "--chunks is for a new folder",
        ),
        (("segment", "append", NAME, "--data-text", "x", "--file", "y"), "not both"),
        (("segment", "append", NAME, "--data-text", "x", "--writer", "w"), "belong together"),
        (("segment", "create", NAME, "--rolling-size", "64 apples"), "1 MiB"),
        (("segment", "create", NAME, "--rolling-size", "0"), "from 64 KiB"),
        (("segment",), "Missing command"),
        (
            ("--data", "X", "segment", "ls"),
            "No such option: --data; it belongs after the command; see `tierlog",
        ),
        (
            ("segment", "--data", "X", "ls"),
            "No such option: --data; it belongs after the command; see `tierlog",
        ),
        (
            ("segment", "ls", "--log-level", "info"),
            "No such option: --log-level; it belongs before the command;",
        ),
        (("--bogus", "segment", "ls"), "No such option: --bogus; see `tierlog --help`"),
    ],
)
def test_wrong_usage_prints_one_line_and_exits_with_2(
    run: Run, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = run(*arguments)

    assert done.code == 2
    assert is_one_line(done.err)
    assert words in done.err
    assert "--help`" in done.err
    assert not folder.exists()


def test_flags_take_no_value_in_the_help(run: Run) -> None:
    for command in (("segment", "create"), ("serve",), ()):
        shown = run(*command, "--help").out
        assert "--help" in shown
        assert "bool" not in shown


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("segment", "read", "no/such"), "segment ls"),
        (("segment", "append", "no/such", "--data-text", "x"), "segment create"),
        (("segment", "append", "../up", "--data-text", "x"), "bad segment name"),
        (
            ("segment", "append", NAME, "--file", "no-such-file"),
            "there is no file no-such-file: name the one",
        ),
        (("segment", "append", NAME, "--data-text", "x", "--expected-offset", "5"), "expected offset is 5"),
        (
            ("segment", "create", NAME),
            "choose another name, or, if it is not a table, use it with exist_ok=True (--exist-ok)",
        ),
        (("segment", "truncate", NAME, "99"), "cannot be truncated"),
        (("segment", "merge", NAME, NAME), "itself"),
        (("segment", "merge", NAME, "other", "other"), "a merge takes 1 to"),
        (("segment", "delete", "_system/x"), "are reserved for the store"),
        (("segment", "append", NAME, "--data-text", "x", "--config", "nowhere.toml"), "tierlog init"),
    ],
)
def test_a_failed_command_prints_one_line_and_exits_with_1(
    run: Run, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    make_store(folder)

    done = run(*arguments)

    assert done.code == 1
    assert is_one_line(done.err)
    assert words in done.err
    assert done.out == ""
    assert run("segment", "read", NAME).out == "flushed tail\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("segment", "create", NAME, "--data", "tierlog.toml"), "is a file: name the data folder of a store"),
        (("status", "--url", "foo"), "error: a server's URL is like http://127.0.0.1:"),
        (("status", "--url", "http://127.0.0.1:8470/foo"), "error: a server's URL has no path"),
        (("restore", "b"), "data has no lts/: put the long-term storage of the store there"),
        (("restore", "b", "--from", "backups"), "error: there is no folder backups"),
    ],
)
def test_a_wrong_path_or_address_is_named_with_its_remedy(
    run: Run, folder: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "tierlog.toml").write_text("")

    done = run(*arguments)

    assert done.code == 1
    assert is_one_line(done.err)
    assert message in done.err
    assert not folder.exists()


def test_the_restore_of_an_unknown_backup_lists_the_known_ones(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    make_store(folder)
    to, target = str(tmp_path / "backups"), str(tmp_path / "restored")
    run("backup", "monday", "--copy-to", to)

    done = run("restore", "nope", "--from", to, "--data", target)

    assert (done.code, done.err) == (1, "error: there is no backup 'nope': the latest are monday\n")


READING: list[tuple[str, ...]] = [
    ("segment", "read", NAME),
    ("segment", "tail", NAME),
    ("segment", "info", NAME),
    ("segment", "ls"),
    ("doctor", "--deep"),
]
WRITING: list[tuple[str, ...]] = [
    ("segment", "append", NAME, "--data-text", "x"),
    ("segment", "seal", NAME),
    ("segment", "truncate", NAME, "1"),
    ("segment", "merge", NAME, NAME + "#1"),
    ("segment", "delete", NAME),
]
CREATE = ("segment", "create", "other")


@pytest.mark.parametrize("arguments", [*READING, *WRITING])
def test_a_missing_folder_is_not_created(run: Run, folder: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)

    assert done.code == 1
    assert is_one_line(done.err)
    assert str(folder) in done.err
    assert not folder.exists()


@pytest.mark.parametrize("arguments", [*READING, *WRITING, CREATE])
def test_a_folder_that_is_no_store_is_left_alone(run: Run, folder: Path, arguments: tuple[str, ...]) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    before = fingerprint(folder)

    done = run(*arguments)

    assert done.code == 1
    assert is_one_line(done.err)
    assert fingerprint(folder) == before


@pytest.mark.parametrize("arguments", [*READING, *WRITING, CREATE])
def test_a_folder_of_a_newer_format_is_refused_and_untouched(
    run: Run, folder: Path, arguments: tuple[str, ...]
) -> None:
    make_store(folder)
    identity = folder / "wal" / "store"
    identity.write_bytes(identity.read_bytes()[:4] + b"\x00\x63" + identity.read_bytes()[6:] + b"more")
    before = fingerprint(folder)

    done = run(*arguments)

    assert done.code == 1
    assert is_one_line(done.err)
    assert "format version 99" in done.err
    assert "newer tierlog" in done.err
    assert fingerprint(folder) == before


def test_a_typo_in_the_configuration_is_reported_before_anything_is_opened(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    make_store(folder)
    before = fingerprint(folder)
    (tmp_path / "config.toml").write_text("[writer]\nflsh_age = 1\n")

    done = run("segment", "append", NAME, "--data-text", "x", "--config", "config.toml")

    assert done.code == 1
    assert is_one_line(done.err)
    assert "did you mean 'writer.flush_age'?" in done.err
    assert fingerprint(folder) == before


# --- damage -------------------------------------------------------------------------------------


def written(file: Path) -> bytes:
    """A log file without the zeros that are room for later groups."""
    return file.read_bytes().rstrip(b"\0")


def cut(file: Path) -> None:
    file.write_bytes(written(file)[:-3])


def flip(file: Path) -> None:
    flip_bit(file, len(written(file)) // 2)


def untouched_by_an_opening(folder: Path) -> dict[str, str]:
    """All but the register, which every opening raises before it may read a log (rule W1)."""
    return {
        name: checksum
        for name, checksum in fingerprint(folder).items()
        if not name.endswith(("register", "owners"))
    }


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_log_is_refused_with_file_and_offset(
    run: Run, folder: Path, damage: Callable[[Path], None]
) -> None:
    make_store(folder)
    file = newest_log_file(folder)
    damage(file)
    before, untouched = fingerprint(folder), untouched_by_an_opening(folder)

    read, doctor = run("segment", "read", NAME), run("doctor")

    assert fingerprint(folder) == before
    for done in (read, run("segment", "append", NAME, "--data-text", "x")):
        assert done.code == 1
        assert is_one_line(done.err)
        assert f"[file {file}, offset " in done.err
        assert "tierlog doctor" in done.err
        assert done.out == ""
    assert untouched_by_an_opening(folder) == untouched
    assert doctor.code == 1
    assert file.name in doctor.out
    assert "offset" in doctor.out
    assert "what to do: " in doctor.out
    assert "not sound" in doctor.out


def test_a_damaged_layout_version_is_a_problem_of_the_folder(run: Run, folder: Path) -> None:
    make_store(folder)
    os.mkfifo(folder / "wal/layout")

    shown, done = run("doctor"), run("doctor", "--json")

    assert (shown.code, done.code) == (1, 1)
    assert "problem: data/wal/layout, offset 0: this is not a regular file" in shown.out
    (problem,) = json.loads(done.out)["folder_problems"]
    assert problem["file"] == str(folder / "wal/layout")
    assert "backup" in problem["advice"]


@pytest.mark.parametrize("name", ["store", "chunks"])
def test_the_doctor_gives_the_remedy_for_a_file_without_which_it_examines_nothing(
    run: Run, folder: Path, name: str
) -> None:
    make_store(folder)
    (folder / "wal" / name).unlink(missing_ok=True)
    os.mkfifo(folder / "wal" / name)

    done = run("doctor")

    assert (done.code, done.out) == (1, "")
    assert is_one_line(done.err)
    assert "not a regular file" in done.err
    assert "put back a copy of this file" in done.err
    assert "tierlog doctor" not in done.err


def test_a_missing_chunk_is_named(run: Run, folder: Path) -> None:
    make_store(folder)
    (chunk,) = chunk_files(folder)
    chunk.unlink()
    before = fingerprint(folder)

    done = run("doctor", "--json")

    assert done.code == 1
    report = json.loads(done.out)
    assert not report["sound"]
    (problem,) = report["containers"][0]["problems"]
    assert problem["file"] == str(chunk)
    assert "from a copy of long-term storage" in problem["advice"]
    assert fingerprint(folder) == before


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_chunk_that_is_not_a_regular_file_is_reported_as_that(
    run: Run, folder: Path, make: Callable[[Path], None]
) -> None:
    make_store(folder)
    (chunk,) = chunk_files(folder)
    chunk.unlink()
    make(chunk)

    done = run("chunks", "verify", NAME)

    assert done.code == 1
    assert "not a regular file" in done.out


def test_a_copy_to_a_file_is_refused_with_its_name(run: Run, folder: Path, tmp_path: Path) -> None:
    make_store(folder)
    os.mkfifo(tmp_path / "pipe")

    done = run("backup", "b", "--copy-to", "pipe")

    assert done.code == 1
    assert f"no folder can be made at {tmp_path}/pipe" in done.err


def test_a_flipped_bit_in_a_chunk_is_found_by_the_deep_examination(run: Run, folder: Path) -> None:
    make_store(folder)
    (chunk,) = chunk_files(folder)
    flip_bit(chunk, 3)

    assert run("doctor").code == 0
    deep = run("doctor", "--deep")
    assert deep.code == 1
    assert chunk.name in deep.out


# --- folders that are open ----------------------------------------------------------------------


@pytest.mark.anyio
async def test_reading_commands_change_nothing_in_a_live_folder_and_fence_nobody(
    folder: Path, run: Run
) -> None:
    async with tierlog.open_store(folder, containers=1) as store:
        await store.create_segment(NAME)
        await store.append(NAME, b"flushed ")
        await store.flush()
        await store.append(NAME, b"tail")
        before = fingerprint(folder)

        read = await in_thread(run, "segment", "read", NAME)
        others = [await in_thread(run, *arguments) for arguments in READING if arguments[1] != "tail"]

        assert fingerprint(folder) == before
        assert read.out == "flushed tail"
        assert [done.code for done in others] == [0] * len(others)
        assert f"open in process {os.getpid()}" in others[-1].out
        assert await store.append(NAME, b"!") == 12


@pytest.mark.anyio
async def test_writing_commands_refuse_a_live_folder_without_take_over(folder: Path, run: Run) -> None:
    async with tierlog.open_store(folder, containers=1) as store:
        await store.create_segment(NAME)
        before = fingerprint(folder)

        for arguments in (*WRITING, CREATE):
            done = await in_thread(run, *arguments)
            assert done.code == 1
            assert is_one_line(done.err)
            assert f"process {os.getpid()}" in done.err
            assert "--take-over" in done.err

        assert fingerprint(folder) == before
        assert await store.append(NAME, b"still here") == 0

        taken = await in_thread(run, "segment", "append", NAME, "--data-text", "taken", "--take-over")

        assert (taken.code, taken.out) == (0, "10\n")
        with pytest.raises((tierlog.NotOwner, tierlog.OutcomeUnknown)):
            await store.append(NAME, b"too late")
        with pytest.raises(tierlog.NotOwner):
            await store.append(NAME, b"too late")


async def in_thread(run: Run, *arguments: str) -> Done:
    """Run a command beside the running event loop, as another process would."""
    return await anyio.to_thread.run_sync(lambda: run(*arguments))


def test_lock_files_of_a_dead_process_do_not_make_a_folder_live(run: Run, folder: Path) -> None:
    make_store(folder)
    (folder / "owners").mkdir(exist_ok=True)
    (folder / "owners" / "killed").write_text('{"pid": 1, "host": "here", "since_ms": 0}')

    assert run("segment", "append", NAME, "--data-text", "x").code == 0
    assert "not open anywhere" in run("doctor").out
