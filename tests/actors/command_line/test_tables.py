"""Commands about system tables: which runs are listed, and what is verified."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

import tierlog
from support.command_line import Run, is_one_line
from support.folders import fingerprint, flip_bit
from tierlog.actors.maintenance import tables
from tierlog.actors.maintenance.tables import TableReport, verify_runs
from tierlog.actors.store.read_only import open_reader
from tierlog.storage_backends.sorted_runs.compaction_policy import next_merge
from tierlog.storage_backends.sorted_runs.part_checksum import part_checksum
from tierlog.storage_backends.sorted_runs.tail import decode_tail
from tierlog.storage_backends.sorted_runs.trailer import Trailer


@pytest.fixture
def store(folder: Path) -> Path:
    """Two containers; the first one has the runs of two full flushes."""

    async def make() -> None:
        async with tierlog.open_store(folder, containers=2) as store:
            for name in ("s", "t"):
                await store.create_segment(name)
                await store.append(name, b"data")
                await store.flush()

    anyio.run(make)
    return folder


def files(store: Path, kind: str) -> list[Path]:
    """All runs: objects, or local copies."""
    return sorted(store.glob("lts/_system/containers/*/runs/*" if kind == "object" else "wal/*/runs/*"))


def doctors_problems(report: Any) -> list[dict[str, Any]]:
    return [problem for container in report["containers"] for problem in container["problems"]]


def test_runs_are_listed_newest_first(run: Run, store: Path) -> None:
    before = fingerprint(store)
    found = json.loads(run("tables", "ls", "--json").out)
    assert {each["run"] for each in found} == {
        str(path.relative_to(store / "lts")) for path in files(store, "object")
    }
    assert all(each["local"] and each["rows"] > 0 and each["bytes"] > 0 for each in found)
    order = [(each["container"], -each["last_cycle"]) for each in found]
    assert order == sorted(order)
    assert len(order) == 2
    index = found[0]["container"]
    table = run("tables", "ls", "--container", str(index)).out.splitlines()
    assert table[0].split() == ["container", "cycles", "rows", "tombstones", "size", "local", "run"]
    assert table[1].split()[-2:] == ["yes", found[0]["run"].rpartition("/")[2]]
    assert fingerprint(store) == before


@pytest.fixture
def flushed(folder: Path) -> Path:
    """One container with the runs of three full flushes, and a segment that was created since."""

    async def make() -> None:
        async with tierlog.open_store(folder, containers=1) as store:
            for number in range(3):
                await store.create_segment(f"s{number}")
                await store.flush()
            await store.create_segment("waits")

    anyio.run(make)
    return folder


def test_a_table_is_shown_with_its_generations_and_what_waits(run: Run, flushed: Path) -> None:
    files(flushed, "local")[0].unlink()  # of the oldest run
    before = fingerprint(flushed)
    (found,) = json.loads(run("tables", "info", "--json").out)
    generations = found["generations"]
    assert (found["container"], found["segments"], found["due_runs"], found["due_bytes"]) == (0, 4, 0, 0)
    assert found["waiting_rows"] > 0
    assert found["waiting_bytes"] > 0
    assert [each["missing_copies"] for each in generations] == [0, 0, 1]
    assert all(each["rows"] > 0 and each["bytes"] > 0 and each["runs"] == 1 for each in generations)
    lines = run("tables", "info", "--container", "0").out.splitlines()
    assert lines[0].split() == ["container", "what", "runs", "rows", "size", "missing"]
    assert lines[1].split() == ["0", "4", "segments"]
    assert lines[2].split()[:2] == ["0", "waiting"]
    newest = generations[0]
    assert lines[3].split()[:5] == ["0", "cycle", str(newest["first_cycle"]), "1", str(newest["rows"])]
    assert lines[-1].split()[-1] == "1"
    assert fingerprint(flushed) == before


def test_the_merge_that_is_due_is_shown(run: Run, flushed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner makes it at once, so to the view two generations are enough, as if the run list were full."""
    monkeypatch.setattr(tables, "next_merge", lambda runs, **_: next_merge(runs, list_bytes=0))
    (table,) = json.loads(run("tables", "info", "--json").out)
    sizes = [each["bytes"] for each in table["generations"]]
    assert (table["due_runs"], table["due_bytes"]) == (3, sum(sizes))
    assert run("tables", "info").out.splitlines()[-1].split()[:4] == ["0", "merge", "due", "3"]


def test_sound_runs_are_verified(run: Run, store: Path) -> None:
    done = run("tables", "verify")
    assert (done.code, done.out) == (0, "2 runs: sound\n")


def test_a_missing_local_copy_is_shown_and_no_problem(run: Run, store: Path) -> None:
    files(store, "local")[0].unlink()
    found = json.loads(run("tables", "ls", "--json").out)
    assert sorted(each["local"] for each in found) == [False, True]
    assert json.loads(run("tables", "verify", "--json").out) == {"sound": True, "runs": 2, "problems": []}


@pytest.mark.parametrize("kind", ["object", "local"])
@pytest.mark.parametrize("at", [20, -30])
def test_a_damaged_run_is_named(run: Run, store: Path, kind: str, at: int) -> None:
    path = files(store, kind)[1]
    flip_bit(path, at % path.stat().st_size)
    name = str(path.relative_to(store / "lts")) if kind == "object" else str(path)
    report = json.loads(run("tables", "verify", "--json").out)
    (problem,) = report["problems"]
    assert (report["sound"], problem["name"]) == (False, name)
    assert 0 <= problem["offset"] <= path.stat().st_size
    done = run("tables", "verify")
    assert done.code == 1
    assert done.out.startswith(f"{name}, offset {problem['offset']}: ")
    assert done.out.endswith("2 runs: 1 problem\n")
    advice = "an owner replaces the local copy" if kind == "local" else "put the bytes of its local copy"
    assert advice in done.out


def test_a_run_whose_parts_are_sound_and_that_has_other_bytes_is_named(run: Run, store: Path) -> None:
    """A value was changed and its block's checksum made anew."""
    (path, *_) = files(store, "local")
    found = next(
        each for each in json.loads(run("tables", "ls", "--json").out) if each["run"][-32:] in path.name
    )
    data = bytearray(path.read_bytes())
    trailer, _ = Trailer.decode(data, found["run"], len(data))
    tail = decode_tail(bytes(data[trailer.blocks_length :]), found["run"], len(data))
    end = tail.offsets[1] - 4
    data[20] ^= 1
    data[end : end + 4] = part_checksum(data[:end], found["run"], 0).to_bytes(4, "big")
    path.write_bytes(data)

    done = run("tables", "verify")
    assert (done.code, "the manifest names" in done.out) == (1, True)


@pytest.mark.parametrize("arguments", [(), ("--deep",)])
def test_the_doctor_names_every_run_that_is_missing_or_damaged_and_what_to_do(
    run: Run, store: Path, arguments: tuple[str, ...]
) -> None:
    missing, damaged = files(store, "object")
    missing.unlink()
    flip_bit(damaged, 20)
    report = json.loads(run("doctor", "--json", *arguments).out)
    problems = {each["file"]: each for each in doctors_problems(report)}
    found = [missing, damaged] if arguments else [missing]
    assert set(problems) == set(map(str, found))
    for path in found:
        copy = next(each for each in files(store, "local") if path.name in each.name)
        assert f"put the bytes of its local copy {copy} back" in problems[str(path)]["advice"]
        shutil.copyfile(copy, path)
    assert run("doctor", *arguments).code == 0


def test_the_doctor_names_every_damaged_run_if_records_cannot_be_read(run: Run, store: Path) -> None:
    for path in files(store, "object") + files(store, "local"):
        flip_bit(path, 20)
    report = json.loads(run("doctor", "--json").out)
    problems = doctors_problems(report)
    assert {each["file"] for each in problems} == set(map(str, files(store, "object")))
    assert all("from a copy of long-term storage" in each["advice"] for each in problems)


def test_a_local_copy_that_cannot_be_read_is_named(run: Run, store: Path) -> None:
    """It has the length of the run, and reads fail."""
    path = files(store, "local")[0]
    object_of = next(each for each in files(store, "object") if each.name in path.name)
    path.unlink()
    path.symlink_to("x" * object_of.stat().st_size)
    done = run("tables", "verify")
    assert (done.code, done.out.startswith(f"{path}, offset 0: it cannot be read")) == (1, True)


@pytest.mark.parametrize("change", ["gone", "cut", "longer"])
def test_an_object_that_is_missing_or_of_another_length_is_named(run: Run, store: Path, change: str) -> None:
    path = files(store, "object")[0]
    if change == "gone":
        path.unlink()
    else:
        data = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(data[:-5] if change == "cut" else data + b"x")
    done = run("tables", "verify")
    assert done.code == 1
    assert str(path.relative_to(store / "lts")) in done.out
    assert ("the run is missing" if change == "gone" else "bytes, not") in done.out


def test_a_container_that_is_not_there_is_an_error_in_one_line(run: Run, store: Path) -> None:
    done = run("tables", "ls", "--container", "2")
    assert done.code == 1
    assert "there is no container 2: the store has 2" in done.err
    assert is_one_line(done.err)


def test_a_run_that_an_owner_merges_meanwhile_is_no_problem(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its object is gone, and the log names another run."""

    async def verify() -> TableReport:
        async with open_reader(store) as view:
            for container in view.containers:
                await container.snapshot()
            async with tierlog.open_store(store) as owner:
                await owner.append("s", b"more")
                await owner.flush()
            old = files(store, "object")[0]
            name = str(old.relative_to(store / "lts"))
            (container,) = [each for each in view.containers if f"/{each.index:04d}/runs/" in name]
            refresh = container.refresh

            async def refresh_to_others() -> bool:
                changed = await refresh()
                table = (await container.snapshot()).state.table
                table.use(table.runs.replaced([run for run in table.runs if run.name == name], ()))
                return changed

            monkeypatch.setattr(container, "refresh", refresh_to_others)
            old.unlink()
            return await verify_runs(view)

    assert anyio.run(verify).problems == ()
