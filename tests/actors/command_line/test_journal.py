"""Commands about journals: what is listed, shown and verified."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio
import attrs
import pytest

import tierlog
from support.command_line import Run, is_one_line
from support.folders import fingerprint, flip_bit
from tierlog import DataCorruption, StorageFull
from tierlog.actors.cli import output
from tierlog.journal.manifest.element import Element, position_of
from tierlog.journal.manifest.store_record import StoreRecord
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage


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


def test_a_narrow_terminal_shows_what_identifies_an_element(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven wrapped columns could not be read; `journal show` has the others."""
    monkeypatch.setattr(output, "terminal_width", lambda: 60)

    heads, *lines = run("journal", "ls", "--container", "1").out.splitlines()

    assert heads.split() == ["container", "element", "kind", "by"]
    assert max(map(len, lines)) <= 60
    assert [line.split()[:3] for line in lines if line.split()[0] == "1"] == [
        ["1", "2", "cycle"],
        ["1", "1", "open"],
    ]
    assert "cycle complete" in lines[0]


def test_an_element_is_shown_with_all_its_fields(run: Run, store: Path) -> None:
    newest = json.loads(run("journal", "show", "0", "--json").out)
    first = json.loads(run("journal", "show", "0", "1", "--json").out)
    assert (newest["element"], newest["follows"], newest["follows_crc"]) == (2, 1, first["crc"])
    assert (first["follows"], first["runs"], first["pins"]) == (0, [], [])
    shown = run("journal", "show", "0").out
    assert f"element          {newest['element']}" in shown
    assert "cycle complete\n" in shown


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


@pytest.mark.parametrize("damage", ["head", "pipe", "all", "link"])
def test_what_the_log_knows_is_missed(run: Run, store: Path, damage: str) -> None:
    """Without the log the rest of the journal would be sound."""
    journal = elements(store, 1)[0].parent
    if damage in ("head", "pipe"):
        elements(store, 1)[-1].unlink()
        if damage == "pipe":
            os.mkfifo(journal / f"{2:016x}")
        message = "it was put back to an earlier state"
    else:
        moved = journal.rename(store / "journal")
        if damage == "link":
            journal.symlink_to(moved)
        message = "journal/ has none, or is no folder"
    done = run("journal", "verify")
    assert (done.code, done.out.splitlines()[-1][-9:]) == (1, "1 problem")
    assert message in done.out


def test_an_element_of_another_history_is_reported(run: Run, store: Path) -> None:
    path = elements(store, 1)[-1]
    element = Element.decode(path.read_bytes())
    position = position_of(path.read_bytes())
    path.with_name(f"{3:016x}").write_bytes(attrs.evolve(element, n=3, predecessor=position).encode())
    done = run("journal", "verify")
    assert done.code == 1
    assert "of which this log has no record" in done.out


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
    assert done.out.endswith("4 elements: 1 problem\n"), "a damaged element is one too"


def test_an_older_element_that_is_damaged_is_found_by_a_deep_inspection_too(run: Run, store: Path) -> None:
    older = elements(store, 1)[0]
    older.chmod(0o600)
    older.write_bytes(bytes(older.stat().st_size))
    assert run("doctor").code == 0, "it reads the newest elements only"
    report = json.loads(run("doctor", "--deep", "--json").out)
    (problem,) = report["containers"][1]["problems"]
    assert (problem["file"], problem["offset"]) == (str(older), 0)
    assert "nothing is lost" in problem["advice"]
    assert len(json.loads(run("journal", "verify", "--json").out)["problems"]) == 1


def test_a_newest_element_that_is_damaged_is_one_problem_of_a_deep_inspection(run: Run, store: Path) -> None:
    flip_bit(elements(store, 1)[-1], 40)
    report = json.loads(run("doctor", "--deep", "--json").out)
    assert [len(each["problems"]) for each in report["containers"]] == [0, 1]


def test_a_damaged_element_is_listed_with_its_object(run: Run, store: Path) -> None:
    path = elements(store, 1)[-1]
    flip_bit(path, 40)
    name = str(path.relative_to(store / "lts"))
    table, listed = run("journal", "ls"), run("journal", "ls", "--json")
    assert (table.code, listed.code) == (1, 1)
    lines = table.out.splitlines()
    assert lines[3].split() == ["1", "2", "damaged", "-", "-", "-", "-"]
    assert lines[-1].startswith(f"{name}, offset 0: element 2 of container 1 cannot be read")
    (damaged,) = [each for each in json.loads(listed.out) if each["kind"] == "damaged"]
    assert (damaged["element"], damaged["name"], damaged["offset"]) == (2, name, 0)
    assert run("journal", "ls", "--container", "0").code == 0


@pytest.mark.parametrize("number", [(), ("2",)])
def test_a_damaged_element_is_not_shown_as_another_one_or_none(
    run: Run, store: Path, number: tuple[str, ...]
) -> None:
    path = elements(store, 1)[-1]
    flip_bit(path, 40)
    done = run("journal", "show", "1", *number)
    assert (done.code, done.out) == (1, "")
    assert f"{path.relative_to(store / 'lts')}, offset 0: element 2 of container 1 cannot be read" in done.err
    assert is_one_line(done.err)
    assert run("journal", "show", "1", "1").code == 0


def test_an_elements_date_is_no_number_of_milliseconds(run: Run, store: Path) -> None:
    shown = run("journal", "show", "0").out
    assert re.search(r"^created +\d{4}-\d\d-\d\d ", shown, re.MULTILINE)
    assert "created ms" not in shown


def test_without_logs_long_term_storage_alone_is_shown(run: Run, store: Path) -> None:
    """What an operator has left decides what is restored."""
    listed, shown = run("journal", "ls").out, run("journal", "show", "1").out
    runs = json.loads(run("tables", "ls", "--json").out)
    shutil.rmtree(store / "wal")
    before = fingerprint(store)

    done = run("journal", "ls")
    assert (done.code, done.out) == (0, listed)
    assert done.err == "wal/ is missing: this is what long-term storage alone has\n"
    assert run("journal", "show", "1").out == shown
    assert run("journal", "verify").out == "4 elements: sound\n"
    assert json.loads(run("tables", "ls", "--json").out) == [{**each, "local": False} for each in runs]
    assert run("tables", "verify").out == "1 run: sound\n"
    assert fingerprint(store) == before
    assert "put wal/ back" in run("segment", "ls").err

    elements(store, 1)[-1].unlink()
    flip_bit(elements(store, 1)[-1], 40)
    assert run("journal", "verify").code == 1


# --- what the doctor advises ---------------------------------------------------------------------


def advice(run: Run, path: Path) -> str:
    """The advice of the only problem that the doctor reports, which is about the object."""
    done = run("doctor", "--json")
    report = json.loads(done.out)
    problems = [*report["folder_problems"], *(p for c in report["containers"] for p in c["problems"])]
    (problem,) = problems
    assert (done.code, report["sound"], problem["file"]) == (1, False, str(path))
    return str(problem["advice"])


async def write_more(store: Path, *, adopt: bool = False) -> None:
    async with tierlog.open_store(store, adopt=adopt) as opened:
        await opened.append("s", b" more")
        await opened.flush()
        assert await opened.read("s", 0, 100) == b"data more"


async def refused(store: Path, path: Path) -> None:
    """What would be written to long-term storage, and nothing else."""
    async with tierlog.open_store(store) as opened:
        assert await opened.read("s", 0, 100) == b"data"
        with pytest.raises(DataCorruption) as caught:
            await opened.flush()
    assert str(path).endswith(caught.value.file)


@pytest.mark.parametrize("damage", ["truncated", "emptied", "flipped", "another store's", "a folder"])
def test_a_damaged_store_record_is_removed_and_created_again(run: Run, store: Path, damage: str) -> None:
    """J11."""
    path = store / "lts" / "_system" / "store"
    whole = path.read_bytes()
    other = StoreRecord(b"o" * 16, 2).encode()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    else:
        damaged = {
            "truncated": whole[:-1],
            "emptied": b"",
            "flipped": whole[:8] + bytes([whole[8] ^ 1]) + whole[9:],
            "another store's": other,
        }
        path.write_bytes(damaged[damage])

    assert "remove this object" in advice(run, path)
    assert run("journal", "verify").code == 1
    if damage == "a folder":
        anyio.run(refused, store, path)
        path.rmdir()
    else:
        path.unlink()
    anyio.run(write_more, store)
    assert path.read_bytes() == whole
    assert run("doctor").code == 0


def test_a_damaged_newest_element_is_removed_and_the_container_adopted(run: Run, store: Path) -> None:
    """J11. The advice to adopt comes after the removal, without which adopting does not help."""
    path = elements(store, 0)[-1]
    flip_bit(path, 40)
    assert re.search("copy.*Without one.*remove it; .*--adopt.*tierlog gc sweep --confirm", advice(run, path))
    assert "newest owner" not in run("doctor").out

    path.unlink()
    anyio.run(lambda: write_more(store, adopt=True))
    assert run("gc", "sweep", "--confirm", "--yes").code == 0
    assert run("doctor").code == 0


def test_without_another_element_only_a_copy_of_the_damaged_one_helps(run: Run, store: Path) -> None:
    *older, path = elements(store, 0)
    for each in older:
        each.unlink()
    flip_bit(path, 40)
    assert advice(run, path) == (
        "put this object back from a copy of long-term storage; nothing else repairs it"
    )


def test_empty_long_term_storage_has_one_remedy(run: Run, store: Path) -> None:
    for each in elements(store, 0):
        each.unlink()
    report = json.loads(run("doctor", "--json").out)
    (problem,) = report["containers"][0]["problems"]
    assert "Mount it" in problem["message"]
    assert problem["advice"] == ""


def test_a_damaged_element_that_the_log_only_recorded_is_removed(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J11. The next opening creates it again, with the bytes in the log (J3)."""
    create = FileSystemChunkStorage.create_with_content

    async def refuse_elements(self: FileSystemChunkStorage, name: str, parts: Sequence[Buffer]) -> int:
        if "/journal/" in name:
            raise StorageFull("no room")
        return await create(self, name, parts)

    async def record() -> None:
        async with tierlog.open_store(store) as opened:
            with pytest.raises(StorageFull):
                await opened.flush()

    with monkeypatch.context() as patched:
        patched.setattr(FileSystemChunkStorage, "create_with_content", refuse_elements)
        anyio.run(record)
    path = elements(store, 0)[-1].with_name(f"{3:016x}")
    path.write_bytes(b"torn")

    assert re.search("remove it; the next opening creates it again", advice(run, path))
    path.unlink()
    anyio.run(write_more, store)
    assert run("doctor").code == 0


def test_a_damaged_element_that_the_log_does_not_know_is_of_another_folder(run: Run, store: Path) -> None:
    shutil.copytree(store / "wal", store / "old")
    anyio.run(write_more, store)
    shutil.rmtree(store / "wal")
    (store / "old").rename(store / "wal")
    path = elements(store, 0)[-1]
    flip_bit(path, 40)
    damaged = [
        problem
        for container in json.loads(run("doctor", "--json").out)["containers"]
        for problem in container["problems"]
        if problem["file"] == str(path)
    ]
    (text,) = [problem["advice"] for problem in damaged]
    assert "does not know it" in text
    assert "adopt" not in text
