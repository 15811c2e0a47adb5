"""The command that compares a store with its long-term storage: what it prints, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

import tierlog
from support.command_line import Run
from support.folders import chunk_files, flip_bit
from tierlog.actors.settings.configuration import WriterConfig

QUIET = tierlog.StoreConfig(writer=WriterConfig(flush_age=3600.0))


@pytest.fixture
def chunk(folder: Path) -> Path:
    """The only chunk of a store."""

    async def make() -> None:
        async with tierlog.open_store(folder, containers=1, config=QUIET) as store:
            await store.create_segment("app/events")
            await store.append("app/events", b"0123456789")
            await store.flush()

    anyio.run(make)
    (found,) = chunk_files(folder)
    return found


def test_a_sound_store_is_verified(run: Run, chunk: Path) -> None:
    done = run("verify")
    assert done.code == 0
    assert done.out.splitlines() == [
        "2 elements, 1 run, 1 chunk with 10 B, 0 unreferenced",
        "sound; what is in chunks and runs was not read (--deep)",
    ]
    assert run("verify", "--deep").out.splitlines()[-1] == "sound"
    assert json.loads(run("verify", "--json").out)["sound"]


def test_what_is_missing_or_damaged_is_listed_with_its_segment(run: Run, chunk: Path) -> None:
    flip_bit(chunk, 5)
    assert run("verify").code == 0
    done = run("verify", "--deep")
    assert done.code == 1
    assert done.out.splitlines()[0].endswith("the bytes of a block do not match their checksum (app/events)")
    chunk.unlink()
    done = run("verify")
    assert done.code == 1
    assert done.out.splitlines()[0].endswith("a chunk of 10 B is missing (app/events)")
    assert done.out.splitlines()[-1].startswith("not sound, problems: 1;")


def test_what_nothing_refers_to_is_listed(run: Run, chunk: Path) -> None:
    lost = chunk.with_name(f"{chunk.name[:-1]}{int(chunk.name[-1], 16) ^ 1:x}")
    lost.write_bytes(b"12345")
    done = run("verify")
    assert done.code == 0
    assert done.out.splitlines()[0].startswith("unreferenced: containers/0000/")
    assert done.out.splitlines()[0].endswith(f"/{lost.name}, 5 B")
    (found,) = json.loads(run("verify", "--json").out)["unreferenced"]
    assert found["length"] == 5
