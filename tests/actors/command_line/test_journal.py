"""Commands about journals: what is listed, shown and verified."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

import tierlog
from support.command_line import Run, is_one_line
from support.folders import fingerprint, flip_bit


@pytest.fixture
def store(folder: Path) -> Path:
    """Two containers, one with a complete flush."""

    async def make() -> None:
        async with tierlog.open_store(folder, containers=2) as store:
            await store.create_segment("s")
            await store.append("s", b"data")
            await store.flush()

    anyio.run(make)
    return folder


def elements(store: Path, container: int) -> list[Path]:
    return sorted((store / "lts" / "_system" / "containers" / f"{container:04d}" / "journal").iterdir())


def test_the_elements_are_listed_newest_first(run: Run, store: Path) -> None:
    before = fingerprint(store)
    found = json.loads(run("journal", "ls", "--json").out)
    kinds = [(each["container"], each["element"], each["kind"], each["cycle"]) for each in found]
    assert kinds == [(c, n, kind, n - 1) for c in (0, 1) for n, kind in ((2, "cycle_complete"), (1, "open"))]
    assert all(each["location"].endswith(str(store / "wal")) for each in found)
    table = run("journal", "ls", "--container", "1").out.splitlines()
    assert [line.split()[:5] for line in table[1:]] == [
        ["1", "2", "cycle", "complete", "1"],
        ["1", "1", "open", "1", "0"],
    ]
    assert fingerprint(store) == before


def test_an_element_is_shown_with_all_that_it_says(run: Run, store: Path) -> None:
    newest = json.loads(run("journal", "show", "0", "--json").out)
    first = json.loads(run("journal", "show", "0", "1", "--json").out)
    assert (newest["element"], newest["follows"], newest["follows_crc"]) == (2, 1, first["crc"])
    assert (first["follows"], first["runs"], first["pins"]) == (0, [], [])
    assert f"element          {newest['element']}" in run("journal", "show", "0").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "0", "9"), "no element 9"),
        (("show", "7"), "there is no container 7"),
        (("ls", "--container", "2"), "no container 2"),
    ],
)
def test_what_is_not_there_is_an_error_in_one_line(
    run: Run, store: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run("journal", *arguments)
    assert done.code == 1
    assert message in done.err
    assert is_one_line(done.err)


def test_a_sound_journal_is_verified(run: Run, store: Path) -> None:
    done = run("journal", "verify")
    assert (done.code, done.out) == (0, "4 elements: sound\n")


@pytest.mark.parametrize("victim", ["element", "store"])
def test_a_damaged_object_is_named(run: Run, store: Path, victim: str) -> None:
    path = elements(store, 1)[-1] if victim == "element" else store / "lts" / "_system" / "store"
    flip_bit(path, 40 if victim == "element" else 8)
    report = json.loads(run("journal", "verify", "--json").out)
    assert not report["sound"]
    assert [problem["name"] for problem in report["problems"]] == [str(path.relative_to(store / "lts"))]
    done = run("journal", "verify")
    assert done.code == 1
    assert str(path.relative_to(store / "lts")) in done.out
    newest = json.loads(run("journal", "show", "1", "--json").out)["element"]
    assert newest == (1 if victim == "element" else 2), "the element before says where things were"
