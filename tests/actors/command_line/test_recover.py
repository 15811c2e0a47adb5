"""The command that recovers a store from long-term storage alone: what it prints, and how it fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anyio
import pytest

import tierlog
from support.command_line import Run, is_one_line
from support.folders import flip_bit
from tierlog.actors.settings.configuration import WriterConfig

QUIET = tierlog.StoreConfig(writer=WriterConfig(flush_age=3600.0))


@pytest.fixture
def lost(folder: Path) -> Path:
    """A store without its logs, with something that was not flushed."""

    async def make() -> None:
        async with tierlog.open_store(folder, containers=1, config=QUIET) as store:
            await store.create_segment("app/events")
            await store.append("app/events", b"0123456789")
            await store.flush()
            await store.append("app/events", b"not flushed")

    anyio.run(make)
    shutil.rmtree(folder / "wal")
    return folder


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
