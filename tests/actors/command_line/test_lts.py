"""Commands on long-term storage alone: what they print, and how they fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anyio
import pytest

import tierlog
from support.command_line import Run, is_one_line
from support.folders import fingerprint, flip_bit
from tierlog.actors.settings.configuration import WriterConfig

QUIET = tierlog.StoreConfig(writer=WriterConfig(flush_age=3600.0))


@pytest.fixture
def copy(folder: Path) -> str:
    """A copy of the long-term storage of a store, with one segment flushed and one that is not."""

    async def make() -> None:
        async with tierlog.open_store(folder, containers=1, config=QUIET) as store:
            await store.create_segment("app/events")
            await store.append("app/events", b"0123456789")
            await store.create_table("app/users")
            await store.flush()
            await store.append("app/events", b"not flushed")
            await store.create_segment("new")

    anyio.run(make)
    place = folder.parent / "copy"
    shutil.copytree(folder / "lts", place)
    shutil.rmtree(folder)
    return str(place)


def test_segments_are_listed_and_read(run: Run, copy: str) -> None:
    before = fingerprint(Path(copy))
    assert run("lts", "ls", copy).out == "app/events\napp/users\n"
    assert run("lts", "ls", copy, "app/e").out == "app/events\n"
    assert [line.split() for line in run("lts", "ls", copy, "--long").out.splitlines()][1:] == [
        ["10", "0", "10", "open", "app/events"],
        ["0", "0", "0", "open", "table", "app/users"],
    ]
    assert [each["length"] for each in json.loads(run("lts", "ls", copy, "--json").out)] == [10, 0]
    assert run("lts", "cat", copy, "app/events").out == "0123456789"
    assert run("lts", "cat", copy, "app/events", "--offset", "3", "--size", "4").out == "3456"
    assert fingerprint(Path(copy)) == before


def test_a_sound_copy_is_verified(run: Run, copy: str) -> None:
    done = run("lts", "verify", copy)
    assert done.code == 0
    assert done.out.splitlines()[-2:] == ["read 1 chunk with 10 B", "sound, each segment as of one moment"]
    found = json.loads(run("lts", "verify", copy, "--json").out)
    assert (found["sound"], found["consistent"]) == (True, True)
    assert found["containers"][0]["cycle"] == 1


def test_damage_is_listed_with_its_object(run: Run, copy: str) -> None:
    (chunk,) = (path for path in (Path(copy) / "containers").rglob("*") if path.is_file())
    flip_bit(chunk, 5)
    done = run("lts", "verify", copy)
    assert done.code == 1
    assert chunk.name in done.out
    assert done.out.splitlines()[-1] == "not sound, problems: 1"
    done = run("lts", "cat", copy, "app/events")
    assert done.code == 1
    assert is_one_line(done.err)
    assert "`tierlog lts verify` lists all damage" in done.err


def test_an_unfinished_copy_is_called_so_without_asking_the_doctor(run: Run, copy: str) -> None:
    """Which looks at folders with logs."""
    (Path(copy) / "_system" / "store").unlink()
    for command in ("verify", "ls"):
        done = run("lts", command, copy)
        assert (done.code, "or an unfinished copy of one" in done.err) == (1, True)
        assert "doctor" not in done.err


def test_a_segment_of_an_open_transaction_is_sound(run: Run, folder: Path) -> None:
    async def make() -> None:
        async with tierlog.open_store(folder, containers=1, config=QUIET) as store:
            await store.create_segment("s")
            await store.begin_transaction("s", "t")
            await store.append(await store.stage_segment("s", "t", "0"), b"staged")
            await store.flush()

    anyio.run(make)
    done = run("lts", "verify", str(folder))
    assert done.code == 0
    assert done.out.splitlines()[-1] == "sound, each segment as of one moment"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls", "."), "neither a data folder nor the long-term storage of one"),
        (("ls", "missing"), "neither a data folder nor the long-term storage of one"),
        (("ls", ""), "it is empty"),
        (("ls", "s3://?"), "is not a location in S3"),
        (("cat", "copy", "none"), "`tierlog lts ls` shows the names"),
        (("cat", "copy", "app/users"), "app/users"),
    ],
)
def test_what_cannot_be_done_is_refused(
    run: Run, copy: str, arguments: tuple[str, ...], message: str
) -> None:
    done = run("lts", *arguments)
    assert done.code in {1, 2}
    assert message in done.err.replace("\n", " ")
