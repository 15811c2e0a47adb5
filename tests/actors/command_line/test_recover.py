"""The command that recovers a store, or one container, from long-term storage alone: what it prints, and how
it fails."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import tierlog
from support.command_line import Run, is_one_line
from support.folders import flip_bit
from support.s3_server import BUCKET, S3Server
from tierlog.actors.settings.configuration import WriterConfig
from tierlog.actors.store import recover
from tierlog.actors.store.recover import RecoveredStore, recover_store

QUIET = tierlog.StoreConfig(writer=WriterConfig(flush_age=3600.0))


@pytest.fixture
def made(folder: Path) -> Path:
    """A store of one container, with something that was not flushed."""

    async def make() -> None:
        async with tierlog.open_store(folder, containers=1, config=QUIET) as store:
            await store.create_segment("app/events")
            await store.append("app/events", b"0123456789")
            await store.flush()
            await store.append("app/events", b"not flushed")

    anyio.run(make)
    return folder


@pytest.fixture
def lost(made: Path) -> Path:
    """Without its logs."""
    shutil.rmtree(made / "wal")
    return made


def test_a_store_is_recovered(run: Run, lost: Path) -> None:
    done = run("recover", "--from-lts", "--data", str(lost))
    assert done.code == 0
    header, row, segments, kept = done.out.splitlines()
    assert header.split() == ["container", "element", "cycle", "complete", "segments"]
    assert row.split()[:3] + row.split()[-1:] == ["0", "2", "1", "1"]
    assert segments == "1 segment, as of these cycles; anything later is unknown"
    assert "tierlog gc sweep --confirm" in kept
    assert run("segment", "read", "app/events", "--data", str(lost)).out == "0123456789"

    again = run("recover", "--from-lts", "--data", str(lost))
    assert again.code == 1
    assert "already has the logs of a store" in again.err
    assert "`tierlog recover --from-lts --container N`" in again.err


async def append(data: Path) -> None:
    async with tierlog.open_store(data, config=QUIET) as store:
        await store.append("app/events", b"more")
        await store.flush()


def test_chunks_are_recovered_where_they_are(run: Run, lost: Path, tmp_path: Path) -> None:
    """On the disk of another machine, for example, which is mounted elsewhere."""
    mounted, data = tmp_path / "mounted", tmp_path / "new" / "data"
    (lost / "lts").rename(mounted)
    command = ("recover", "--from-lts", "--data", str(data), "--chunks")
    assert run(*command, str(mounted)).code == 0
    assert (data / "lts").readlink() == mounted
    read = ("segment", "read", "app/events", "--data", str(data))
    assert run(*read).out == "0123456789"
    # The store goes on there.
    anyio.run(append, data)
    assert run(*read).out == "0123456789more"
    assert b"more" in {path.read_bytes() for path in mounted.rglob("*") if path.is_file()}
    assert run("doctor", "--deep", "--data", str(data)).code == 0

    # Again, in case that it was killed before it was complete.
    shutil.rmtree(data / "wal")
    assert run(*command, str(mounted)).code == 0


@pytest.mark.parametrize("inner", ["lts/new", "new"])
def test_no_store_is_recovered_into_another_one(run: Run, made: Path, tmp_path: Path, inner: str) -> None:
    """Also not into the one that has the chunks."""
    other = tmp_path / "other"
    shutil.copytree(made, other)
    before = sorted(made.rglob("*")), sorted(other.rglob("*"))
    for outer in (made, other):
        chunks, new = str(made / "lts"), outer / inner
        refused = run("recover", "--from-lts", "--chunks", chunks, "--data", str(new))
        assert (refused.code, is_one_line(refused.err)) == (1, True)
        kind = "long-term storage" if inner.startswith("lts") else "store"
        assert f"{new} is inside the {kind} {new.parent}: name that one" in refused.err
    assert (sorted(made.rglob("*")), sorted(other.rglob("*"))) == before


def test_a_folder_of_chunks_that_cannot_be_recovered_leaves_no_link(
    run: Run, lost: Path, tmp_path: Path
) -> None:
    data, empty = tmp_path / "new", tmp_path / "empty"
    empty.mkdir()
    refused = run("recover", "--from-lts", "--data", str(data), "--chunks", str(empty))
    assert (refused.code, data.exists()) == (1, False)
    refused = run("recover", "--from-lts", "--data", str(data), "--chunks", f"{empty}/none")
    assert (refused.code, f"there is no folder {empty}/none" in refused.err) == (1, True)
    # It is not replaced.
    refused = run("recover", "--from-lts", "--data", str(lost), "--chunks", str(empty))
    assert (refused.code, "move it away, or recover it without --chunks" in refused.err) == (1, True)
    assert run("recover", "--from-lts", "--data", str(lost), "--chunks", f"{lost}/lts").code == 0


def test_an_interruption_at_the_end_takes_no_chunks_away(
    run: Run, lost: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs are there, so it could not be repeated."""

    async def interrupted(*arguments: Any, **more: Any) -> RecoveredStore:
        await recover_store(*arguments, **more)
        raise tierlog.Unavailable("it was interrupted")

    mounted, data = tmp_path / "mounted", tmp_path / "new"
    (lost / "lts").rename(mounted)
    monkeypatch.setattr(recover, "recover_store", interrupted)
    assert run("recover", "--from-lts", "--data", str(data), "--chunks", str(mounted)).code == 1
    assert run("segment", "read", "app/events", "--data", str(data)).out == "0123456789"


def test_a_file_in_the_place_of_the_logs_is_named_as_such(run: Run, lost: Path) -> None:
    (lost / "wal").touch()
    refused = run("recover", "--from-lts", "--data", str(lost))
    assert (refused.code, "wal is a file, in the place of the logs" in refused.err) == (1, True)


def test_an_empty_folder_of_logs_is_no_store_and_no_log(run: Run, lost: Path) -> None:
    """As if it were a mount point, and the mount missing."""
    (lost / "wal").mkdir()
    refused = run("segment", "ls", "--data", str(lost))
    assert "its wal/ is missing or empty" in refused.err
    assert "`tierlog recover --from-lts`" in refused.err
    refused = run("recover", "--from-lts", "--data", str(lost))
    assert refused.code == 1
    assert f"{lost}/wal is there, and empty: mount what belongs there" in refused.err
    (lost / "wal").rmdir()
    assert run("recover", "--from-lts", "--data", str(lost)).code == 0


def test_later_elements_leave_only_a_time_before_which_the_cycle_was_complete(run: Run, lost: Path) -> None:
    found = json.loads(run("recover", "--from-lts", "--json", "--data", str(lost)).out)
    shutil.rmtree(lost / "wal")
    journal = lost / "lts/_system/containers/0000/journal"
    for element in sorted(journal.iterdir())[:2]:
        element.unlink()
    assert [each["is_exact"] for each in found["containers"]] == [True]
    done = run("recover", "--from-lts", "--data", str(lost))
    assert " before 2" in done.out.splitlines()[1]


def test_what_is_not_whole_is_refused_with_advice(run: Run, lost: Path) -> None:
    flip_bit(max((lost / "lts/_system/containers/0000/journal").iterdir()), 50)
    done = run("recover", "--from-lts", "--data", str(lost))
    assert done.code == 1
    assert is_one_line(done.err)
    assert "`tierlog lts verify` lists all problems" in done.err
    assert [path.name for path in lost.iterdir()] == ["lts"]


def test_one_must_say_what_to_recover_from(run: Run, lost: Path) -> None:
    done = run("recover", "--data", str(lost))
    assert done.code == 2
    assert "--from-lts" in done.err


def test_an_opening_names_the_command(run: Run, lost: Path) -> None:
    assert "`tierlog recover --from-lts`" in run("segment", "ls", "--data", str(lost)).err.replace("\n", " ")
    assert "`tierlog recover" in run("segment", "create", "s", "--data", str(lost)).err.replace("\n", " ")


# --- one container (rule R11) -----------------------------------------------------------------------


@pytest.fixture
def damaged(made: Path) -> Path:
    """The log of the only container is damaged."""
    flip_bit(max((made / "wal/0000").glob("*.wal")), 600)
    return made


@pytest.mark.parametrize("answer", ["--yes", "yes"])
def test_a_damaged_log_is_given_up_only_if_the_operator_says_so(
    run: Run, damaged: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    command = ["recover", "--from-lts", "--container", "0", "--data", str(damaged)]
    monkeypatch.setattr(sys, "stdin", io.StringIO("no\n"))
    refused = run(*command)
    assert refused.code == 1
    assert "The log of container 0 is damaged: " in refused.err
    assert "nothing was confirmed" in refused.err
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    unasked = run(*command).err
    assert unasked.startswith("error: the log of container 0 is damaged: ")
    assert unasked.endswith("; not confirmed: add --yes\n")
    assert [path.name for path in (damaged / "wal").iterdir() if "before" in path.name] == []

    if answer == "--yes":
        command.append(answer)
    else:
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{answer}\n"))
    done = run(*command)
    assert done.code == 0
    header, row, *_, kept = done.out.splitlines()
    assert header.split() == ["container", "element", "cycle", "complete", "segments"]
    assert row.split()[0] == "0"
    assert Path(kept.removeprefix("the lost log is kept: ")).is_dir()
    assert run("segment", "read", "app/events", "--data", str(damaged)).out == "0123456789"


def test_a_missing_log_is_recovered_without_a_question(run: Run, damaged: Path) -> None:
    shutil.rmtree(damaged / "wal/0000")
    refused = run("segment", "create", "s", "--data", str(damaged))
    assert "`tierlog recover --from-lts --container 0`" in refused.err.replace("\n", " ")
    done = run("recover", "--from-lts", "--container", "0", "--json", "--data", str(damaged))
    assert done.code == 0
    assert [each["container"] for each in json.loads(done.out)["containers"]] == [0]


def test_options_of_one_container_are_checked(run: Run, damaged: Path) -> None:
    alone = run("recover", "--from-lts", "--yes", "--data", str(damaged))
    assert alone.code == 2
    assert "--yes answers the question of --container" in alone.err
    other = run("recover", "--from-lts", "--container", "1", "--data", str(damaged))
    assert other.code == 1
    assert "there is no container 1" in other.err


def test_an_empty_folder_of_a_log_is_no_lost_log_that_is_kept(run: Run, made: Path) -> None:
    shutil.rmtree(made / "wal/0000")
    (made / "wal/0000").mkdir()
    done = run("recover", "--from-lts", "--container", "0", "--data", str(made))
    assert (done.code, "the lost log is kept" in done.out) == (0, False)
    assert run("segment", "read", "app/events", "--data", str(made)).out == "0123456789"


def test_what_cannot_be_recovered_leaves_no_new_folder(
    run: Run, server: S3Server, tmp_path: Path, lost: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    new = tmp_path / "new"
    for chunks, message in {
        "s3://no-such-bucket/x": "there is no bucket",
        f"s3://{BUCKET}/nothing": "the record of the store is missing",
        str(empty): "is missing",
    }.items():
        refused = run("recover", "--from-lts", f"--data={new}", f"--chunks={chunks}")
        assert (refused.code, is_one_line(refused.err)) == (1, True)
        assert message in refused.err
        assert not new.exists()
    # One that was there stays.
    new.mkdir()
    assert run("recover", "--from-lts", f"--data={new}", f"--chunks=s3://{BUCKET}/nothing").code == 1
    assert list(new.iterdir()) == []
