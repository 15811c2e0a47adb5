"""Recovery of one container whose log is lost, or declared lost, while the others go on with theirs (rule
R11)."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import copytree, rmtree
from subprocess import run
from typing import NoReturn, TypeVar

import anyio
import anyio.abc
import pytest

from support.folders import fingerprint, flip_bit
from support.scripted_files import ScriptedFiles
from tierlog import (
    DataCorruption,
    HistoryLost,
    InvalidArgument,
    SegmentStore,
    StoreConfig,
    StoreMismatch,
    TierlogError,
    open_store,
)
from tierlog.actors.container import lts_boot
from tierlog.actors.container.container import Container
from tierlog.actors.folder.paths import check_path
from tierlog.actors.settings.configuration import WriterConfig
from tierlog.actors.store import recover_container as module
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.read_only import open_reader
from tierlog.actors.store.recover import RecoveredStore
from tierlog.actors.store.recover_container import FoundLog, inspect_log, recover_container
from tierlog.storage_backends.base.files import IoCall, Program, Rename
from tierlog.storage_backends.base.ids import epoch_of
from tierlog.storage_backends.base.names import container_of
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

QUIET = StoreConfig(writer=WriterConfig(flush_age=3600.0))
NAMES = [f"s{number}" for number in range(8)]
LOST = [name for name in NAMES if container_of(name, 2) == 1]
KEPT = [name for name in NAMES if container_of(name, 2) == 0]
JUMP = 1 << 20
T = TypeVar("T")


async def make(folder: Path) -> None:
    """Of two containers, each with segments that have two events, the second of which is not flushed."""
    async with open_store(folder, containers=2, config=QUIET) as store:
        for name in NAMES:
            await store.create_segment(name)
            await store.append(name, b"flushed", writer_id="w", event_number=0)
        await store.flush()
        for name in NAMES:
            await store.append(name, b" lost", writer_id="w", event_number=1)


async def recovered(folder: Path, container: int = 1) -> RecoveredStore:
    return await recover_container(check_path(folder), QUIET, LocalFiles(), system_world(), container)


async def found(folder: Path, container: int = 1) -> FoundLog:
    return await inspect_log(check_path(folder), QUIET, LocalFiles(), container)


def damage(folder: Path) -> None:
    """In the middle of the log of container 1."""
    log = max((folder / "wal/0001").glob("*.wal"))
    flip_bit(log, 600)


async def epochs(store: SegmentStore) -> list[int]:
    async def epoch(container: Container) -> int:
        return container.state.epoch

    return [await store.on_container(index, epoch) for index in range(2)]


async def unconfirmed(store: SegmentStore) -> list[UnconfirmedRecord | None]:
    async def record(container: Container) -> UnconfirmedRecord | None:
        return container.confirmation.unconfirmed

    return [await store.on_container(index, record) for index in range(2)]


async def test_r11_one_container_is_recovered_and_the_others_go_on(tmp_path: Path) -> None:
    await make(tmp_path)
    async with open_store(tmp_path, config=QUIET) as store:
        before = await epochs(store)
    (tmp_path / "wal/0001").rename(tmp_path / "gone")
    others = fingerprint(tmp_path / "wal/0000")

    done = await recovered(tmp_path)
    assert [(each.container, each.cycle, each.segments) for each in done.containers] == [(1, 1, len(LOST))]
    assert not done.kept
    assert fingerprint(tmp_path / "wal/0000") == others
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "lts", "wal"]
    async with open_store(tmp_path, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in KEPT} == {b"flushed lost"}
        assert {await store.read(name, 0, 100) for name in LOST} == {b"flushed"}
        first, second = await epochs(store)
        assert first == before[0] + 1
        assert second > before[1] + JUMP
        assert await unconfirmed(store) == [None, UnconfirmedRecord(Reason.RESTORED)]


async def test_r9_clients_of_that_container_alone_learn_what_is_lost(tmp_path: Path) -> None:
    await make(tmp_path)
    (tmp_path / "wal/0001").rename(tmp_path / "gone")
    await recovered(tmp_path)
    async with open_store(tmp_path, config=QUIET) as store:
        histories = {name: (await store.segment_info(name)).history for name in NAMES}
        assert {bool(histories[name]) for name in KEPT} == {False}
        assert {histories[name] > JUMP for name in LOST} == {True}
        for name in KEPT:
            await store.append(name, b" on", writer_id="w", event_number=2)
        for name in LOST:
            with pytest.raises(HistoryLost):
                await store.append(name, b" on", writer_id="w", event_number=2)
            for _ in range(2):
                await store.append(name, b" lost", writer_id="w", event_number=1)
            await store.append(name, b" on", writer_id="w", event_number=2)
        assert {(await store.segment_info(name)).length for name in NAMES} == {len(b"flushed lost on")}
        await store.create_segment(f"{LOST[0]}#new")
        assert epoch_of((await store.segment_info(f"{LOST[0]}#new")).segment_id) > JUMP


async def test_r11_a_damaged_log_that_is_declared_lost_is_kept(tmp_path: Path) -> None:
    await make(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataCorruption):
        async with open_store(tmp_path, config=QUIET):
            pass
    assert (await found(tmp_path)).state.startswith("is damaged: ")
    lost = fingerprint(tmp_path / "wal/0001")

    done = await recovered(tmp_path)
    assert done.kept.startswith(f"{tmp_path}/wal/0001-before-")
    kept = fingerprint(Path(done.kept))
    assert {name for name in lost | kept if lost.get(name) != kept.get(name)} == {"register"}
    async with open_store(tmp_path, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in LOST} == {b"flushed"}
        assert {await store.read(name, 0, 100) for name in KEPT} == {b"flushed lost"}
    assert fingerprint(Path(done.kept)) == kept


async def test_j6_a_lost_log_that_is_put_back_is_refused(tmp_path: Path) -> None:
    await make(tmp_path)
    done = await recovered(tmp_path)
    (tmp_path / "wal/0001").rename(tmp_path / "recovered")
    Path(done.kept).rename(tmp_path / "wal/0001")
    with pytest.raises(StoreMismatch, match="of which this log has no record"):
        async with open_store(tmp_path, config=QUIET):
            pass


@pytest.mark.parametrize("killed_before", ["claim_chain", "publish_log"])
async def test_r11_a_refusal_names_the_log_that_a_killed_recovery_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_before: str
) -> None:
    """It can be put back until the recovery has claimed the chain, and the recovery can be repeated."""
    store_folder, killed = tmp_path / "store", tmp_path / "killed"
    await make(store_folder)

    def kill(*_: object) -> NoReturn:
        copytree(store_folder, killed)
        raise InterruptedError

    monkeypatch.setattr(module, killed_before, kill)
    with pytest.raises(InterruptedError):
        await recovered(store_folder)
    monkeypatch.undo()

    [kept] = (killed / "wal").glob("0001-before-*")
    for _ in range(2):
        with pytest.raises(StoreMismatch, match=f"its log is lost.* back: it may be {kept}, .*--container 1"):
            async with open_store(killed, config=QUIET):
                pass
    async with open_reader(killed) as view:
        with pytest.raises(StoreMismatch, match=f"its log is lost.* back: it may be {kept}, .*--container 1"):
            await view.list_segments()
    if killed_before == "claim_chain":
        copytree(killed, tmp_path / "put back")
        log = tmp_path / "put back/wal/0001"
        rmtree(log)
        (log.parent / kept.name).rename(log)
        async with open_store(tmp_path / "put back", config=QUIET) as store:
            assert {await store.read(name, 0, 100) for name in NAMES} == {b"flushed lost"}
    await recovered(killed)
    async with open_store(killed, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in LOST} == {b"flushed"}


async def test_r11_a_refusal_without_a_log_that_was_moved_away_names_none(tmp_path: Path) -> None:
    await make(tmp_path)
    rmtree(tmp_path / "wal/0001")
    (tmp_path / "wal/0000-before-1").mkdir()
    with pytest.raises(StoreMismatch, match="Put the folder of the log back. If it is gone"):
        async with open_store(tmp_path, config=QUIET):
            pass


async def test_r11_what_would_be_lost_is_said_before(tmp_path: Path) -> None:
    await make(tmp_path)
    has_groups = await found(tmp_path)
    assert not has_groups.is_empty
    assert has_groups.state.endswith(" groups, and no damage")
    (tmp_path / "wal/0001").rename(tmp_path / "gone")
    assert (await found(tmp_path)).is_empty
    with pytest.raises(StoreMismatch, match="its log is lost"):
        async with open_store(tmp_path, config=QUIET):
            pass
    assert (await found(tmp_path)).is_empty


async def test_r11_a_container_without_elements_begins_empty(tmp_path: Path) -> None:
    """R1, R4: as in a recovery of the whole store."""
    async with open_store(tmp_path, containers=2, config=QUIET):
        pass
    for element in (tmp_path / "lts/_system/containers/0001/journal").iterdir():
        element.unlink()
    (tmp_path / "wal/0001").rename(tmp_path / "gone")
    done = await recovered(tmp_path)
    assert [(each.element, each.segments) for each in done.containers] == [(0, 0)]
    async with open_store(tmp_path, config=QUIET) as store:
        assert (await epochs(store))[1] > JUMP


async def test_r11_a_refused_recovery_leaves_the_folder_as_it_is(tmp_path: Path) -> None:
    await make(tmp_path)
    flip_bit(max((tmp_path / "lts/_system/containers/0001/journal").iterdir()), 50)
    before = fingerprint(tmp_path)
    with pytest.raises(DataCorruption):
        await recovered(tmp_path)
    with pytest.raises(InvalidArgument, match="the containers 0 to 1: there is no container 2"):
        await recovered(tmp_path, 2)
    assert fingerprint(tmp_path) == before


async def test_r11_logs_on_another_file_system_are_refused_before_the_chain_is_claimed(
    tmp_path: Path,
) -> None:
    """As where ``wal/`` is a mount point: afterwards the lost log would be refused too."""
    await make(tmp_path)
    before = fingerprint(tmp_path)
    files = ScriptedFiles()

    def other_file_system(call: IoCall) -> OSError | None:
        if not isinstance(call, Rename):
            return None
        places = {Path(path).relative_to(tmp_path).parts[0] for path in (call.source, call.target)}
        return OSError(errno.EXDEV, os.strerror(errno.EXDEV)) if len(places) > 1 else None

    files.fail = other_file_system
    with pytest.raises(InvalidArgument, match=f"{tmp_path}/wal is on another file system than {tmp_path}"):
        await recover_container(check_path(tmp_path), QUIET, files, system_world(), 1)
    assert fingerprint(tmp_path) == before
    async with open_store(tmp_path, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in NAMES} == {b"flushed lost"}


async def test_s17_folders_that_are_nested_deeper_than_those_of_a_restore_are_refused(tmp_path: Path) -> None:
    await make(tmp_path)
    made = tmp_path / ".restoring"
    made.mkdir()
    inner = os.open(made, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=inner)
        outer, inner = inner, os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    with pytest.raises(InvalidArgument, match="folders in folders"):
        await recovered(tmp_path)
    # pytest removes folders by recursion, .
    run(["rm", "-rf", str(made)], check=True)


async def test_r11_a_link_without_its_target_is_no_lost_log(tmp_path: Path) -> None:
    await make(tmp_path)
    log, away = tmp_path / "wal/0001", tmp_path / "other disk"
    log.rename(away)
    log.symlink_to(tmp_path / "mount")

    with pytest.raises(InvalidArgument, match="wal/0001 is a link, .* is it not mounted"):
        async with open_store(tmp_path, config=QUIET, recover_from_lts=True):
            pass
    for refused in (found, recovered):
        with pytest.raises(InvalidArgument, match="is it not mounted"):
            await refused(tmp_path)
    away.rename(tmp_path / "mount")
    async with open_store(tmp_path, config=QUIET, recover_from_lts=True) as store:
        assert {await store.read(name, 0, 100) for name in NAMES} == {b"flushed lost"}


async def test_r11_the_next_opening_removes_what_the_check_of_a_killed_recovery_left(tmp_path: Path) -> None:
    await make(tmp_path)
    (tmp_path / ".restoring").mkdir()
    (tmp_path / "wal/.remaking-moves").mkdir()
    async with open_store(tmp_path, config=QUIET):
        pass
    assert sorted(path.name for path in (tmp_path / "wal").glob(".r*")) == []


@pytest.mark.parametrize("goes_on", ["opening", "recovery", "opening that recovers"])
@pytest.mark.parametrize("where", ["its place", "while it is made again", "beside an empty one"])
async def test_w11_a_kill_while_the_name_of_a_log_is_made_again_loses_no_log(
    tmp_path: Path, where: str, goes_on: str
) -> None:
    """The next one makes it again, or goes on from there."""
    await make(tmp_path)
    (tmp_path / ".restoring/0001").mkdir(parents=True)
    log = tmp_path / "wal/0001"
    if where != "its place":
        log.rename(tmp_path / "wal/.remaking-0001")
    if where == "beside an empty one":
        log.mkdir()

    if goes_on == "recovery":
        done = await recovered(tmp_path)
        assert (Path(done.kept) / "register").exists()
    async with open_store(
        tmp_path, config=QUIET, recover_from_lts=goes_on == "opening that recovers"
    ) as store:
        assert {await store.read(name, 0, 100) for name in KEPT} == {b"flushed lost"}
        lost = b"flushed" if goes_on == "recovery" else b"flushed lost"
        assert {await store.read(name, 0, 100) for name in LOST} == {lost}
    assert not [path for path in (tmp_path / "wal").iterdir() if path.name.startswith(".")]
    assert not (tmp_path / ".restoring").exists()


async def test_w11_of_two_logs_for_one_name_none_is_lost(tmp_path: Path) -> None:
    """An operator says which one it is."""
    await make(tmp_path)
    (tmp_path / ".restoring/0001").mkdir(parents=True)
    log, moved = tmp_path / "wal/0001", tmp_path / "wal/.remaking-0001"
    log.rename(moved)
    log.mkdir()
    (log / "register").write_bytes(b"another log's")
    before = fingerprint(tmp_path / "wal")
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=f"{moved} was 0001 until .* {log} was made since"):
            async with open_store(tmp_path, config=QUIET):
                pass
        with pytest.raises(InvalidArgument, match="move the one away"):
            await recovered(tmp_path)
    assert fingerprint(tmp_path / "wal") == before
    log.rename(tmp_path / "kept")
    async with open_store(tmp_path, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in NAMES} == {b"flushed lost"}


async def test_r11_a_chain_that_goes_on_meanwhile_puts_the_log_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the owner of the log, or of a copy of it, were alive somewhere."""
    await make(tmp_path)
    before = fingerprint(tmp_path)

    async def claimed(*arguments: object) -> None:
        raise StoreMismatch("somebody created it meanwhile")

    monkeypatch.setattr("tierlog.actors.store.recover_container.claim_chain", claimed)
    with pytest.raises(StoreMismatch):
        await recovered(tmp_path)
    # It was fenced before it was moved away: its register has another epoch.
    after = fingerprint(tmp_path)
    assert {name for name in before | after if before.get(name) != after.get(name)} == {"wal/0001/register"}
    async with open_store(tmp_path, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in LOST} == {b"flushed lost"}


LIVE = r"""
import sys
import anyio
from tierlog import TierlogError, open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        await store.append(sys.argv[2], b" alive")
        sys.stdout.write("open\n")
        sys.stdout.flush()
        sys.stdin.readline()
        try:
            offset = await store.append(sys.argv[2], b" acked")
            sys.stdout.write(f"acked at {offset}\n")
        except TierlogError as error:
            sys.stdout.write(f"{error}\n")
        sys.stdout.flush()

anyio.run(main)
"""


@asynccontextmanager
async def live_process(folder: Path) -> AsyncIterator[anyio.abc.Process]:
    async with await anyio.open_process([sys.executable, "-c", LIVE, str(folder), LOST[0]]) as process:
        assert process.stdout is not None
        assert await process.stdout.receive() == b"open\n"
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


async def test_r11_a_process_that_is_not_noticed_acks_nothing_any_more(tmp_path: Path) -> None:
    """Its lock file was lost with ``owners/``."""
    await make(tmp_path)
    async with live_process(tmp_path) as process:
        rmtree(tmp_path / "owners")
        await recovered(tmp_path)

        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(b"\n")
        answer = (await process.stdout.receive()).decode()
    assert not answer.startswith("acked")
    async with open_store(tmp_path, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in LOST} == {b"flushed"}, answer


async def test_r11_a_process_of_an_earlier_version_is_noticed(tmp_path: Path) -> None:
    """Its lock file is in ``wal/owners``."""
    await make(tmp_path)
    async with live_process(tmp_path) as process:
        (tmp_path / "owners").rename(tmp_path / "wal/owners")
        before = fingerprint(tmp_path)
        for attempt in (recovered, found):
            with pytest.raises(InvalidArgument, match=f"open in process {process.pid}"):
                await attempt(tmp_path)
        assert fingerprint(tmp_path) == before


async def test_r11_an_open_store_is_refused_with_what_to_do(tmp_path: Path) -> None:
    await make(tmp_path)
    async with open_store(tmp_path, config=QUIET) as store:
        for attempt in (recovered, found):
            with pytest.raises(InvalidArgument, match=f"open in process {os.getpid()} .*stop that process"):
                await attempt(tmp_path)
        assert await store.read(LOST[0], 0, 100) == b"flushed lost"


async def test_r11_nobody_opens_the_folder_during_a_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(tmp_path)
    claim, refusals = lts_boot.claim_chain, list[str]()

    async def tried(*arguments: object) -> None:
        for take_over in (False, True):
            try:
                async with open_store(tmp_path, config=QUIET, take_over=take_over):
                    pass
            except TierlogError as error:
                refusals.append(str(error))
        await claim(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "claim_chain", tried)
    await recovered(tmp_path)
    assert len(refusals) == 2
    assert all(
        f"process {os.getpid()} is restoring or recovering the store in" in refusal for refusal in refusals
    )
    async with open_store(tmp_path, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in LOST} == {b"flushed"}


async def test_r11_long_term_storage_of_another_store_is_refused(tmp_path: Path) -> None:
    folder, other = tmp_path / "data", tmp_path / "other"
    for each in (folder, other):
        await make(each)
    (folder / "lts").rename(tmp_path / "lts")
    (other / "lts").rename(folder / "lts")
    before = fingerprint(folder)
    with pytest.raises(StoreMismatch):
        await recovered(folder)
    assert fingerprint(folder) == before


async def test_r11_a_log_that_is_found_again_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    """As if an opening had made it since somebody saw that it was missing."""
    await make(tmp_path)
    before = fingerprint(tmp_path)
    with pytest.raises(InvalidArgument, match="the log of container 1 is not lost: open the store"):
        await recover_container(check_path(tmp_path), QUIET, LocalFiles(), system_world(), 1, only_empty=True)
    assert fingerprint(tmp_path) == before


class CancelledFiles(LocalFiles):
    """asyncio cancels the task that runs the program of this name, once that has ended."""

    def __init__(self, cancelled: str) -> None:
        super().__init__()
        self._cancelled = cancelled

    async def run(self, program: Program[T]) -> T:
        value = await super().run(program)
        if getattr(program, "__name__", "") == self._cancelled:
            raise asyncio.CancelledError
        return value

    def lane(self, name: str, width: int = 1, nofollow_root: str = "") -> CancelledFiles:
        return self


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("program", "left"), [("move_log_away", b"flushed lost"), ("publish_log", b"flushed")]
)
async def test_r11_a_cancellation_at_a_move_leaves_the_log_or_the_new_one(
    tmp_path: Path, program: str, left: bytes
) -> None:
    await make(tmp_path)
    with pytest.raises(asyncio.CancelledError):
        await recover_container(check_path(tmp_path), QUIET, CancelledFiles(program), system_world(), 1)
    async with open_store(tmp_path, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in LOST} == {left}


async def test_r11_it_can_be_repeated_and_both_logs_are_kept(tmp_path: Path) -> None:
    await make(tmp_path)
    kept = [(await recovered(tmp_path)).kept for _ in range(2)]
    assert [Path(each).is_dir() for each in kept] == [True, True]
    assert kept[0] != kept[1]
    async with open_store(tmp_path, config=QUIET) as store:
        assert {await store.read(name, 0, 100) for name in LOST} == {b"flushed"}
