"""The graceful end: within its budget everything is flushed, the next opening has nothing to do again, and
what could not be flushed is listed (rule F9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from support.stores import CONFIG, config, make
from tierlog import SegmentStore, StoreConfig, Unavailable, open_store
from tierlog.actors.settings.configuration import ShutdownConfig, StorageConfig
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage, every

pytestmark = pytest.mark.anyio
GRACEFUL = ShutdownConfig(embedded_budget=60.0)
CHANGES = ("create", "create_with_content", "write", "concat", "delete")


def graceful(**more: Any) -> StoreConfig:
    return config(shutdown=GRACEFUL, **more)


def storage_in(folder: Path) -> FaultyChunkStorage:
    return FaultyChunkStorage(
        FileSystemChunkStorage(LocalFiles(), str(folder / "lts"), system_world(), create=True)
    )


async def fill(store: SegmentStore, count: int = 20) -> None:
    for number in range(count):
        await make(store, f"app/{number}", b"x" * 1000)


def replayed(store: SegmentStore) -> int:
    """Operations that the openings applied after their checkpoints."""
    return sum(each.current.recovery.operations for each in store.statistics().containers if each.current)


def changes(storage: FaultyChunkStorage) -> list[str]:
    """The chunks that were changed since the last call, but for the owner's own claim and what it made
    superfluous (rules J4, J7)."""
    found = [call.name for call in storage.calls if call.verb in CHANGES]
    storage.calls.clear()
    return [name for name in found if "/journal/" not in name and name != "_system/store"]


@pytest.mark.parametrize("segments", [1, 60])
async def test_f9_after_a_graceful_end_the_next_opening_has_nothing_to_do_again(
    tmp_path: Path, segments: int
) -> None:
    """It applies the checkpoint's own four records, whatever was written, and its first cycle, by age, writes
    nothing."""
    storage = storage_in(tmp_path)
    async with open_store(tmp_path / "data", containers=2, config=graceful(), storage=storage) as store:
        await fill(store, segments)
    assert store.end_report is not None
    assert store.end_report.left == ()

    changes(storage)
    impatient = graceful(writer=attrs.evolve(CONFIG.writer, flush_age=0.01))
    async with open_store(tmp_path / "data", config=impatient, storage=storage) as store:
        assert replayed(store) == 2 * 4
        assert [each.current.active_segments for each in store.statistics().containers if each.current] == [
            0,
            0,
        ]
        for number in range(segments):
            assert (await store.segment_info(f"app/{number}")).flushed_length == 1000
        await store.flush()
        assert changes(storage) == []
    assert changes(storage) == []


async def test_f9_without_a_budget_a_close_does_not_flush(tmp_path: Path) -> None:
    """Programs that open a store, append and end would make a chunk and an element each time."""
    storage = storage_in(tmp_path)
    async with open_store(tmp_path / "data", containers=2, config=config(), storage=storage) as store:
        await fill(store)
        storage.calls.clear()
    assert store.end_report is None
    assert not [call for call in storage.calls if call.verb in CHANGES]

    async with open_store(tmp_path / "data", config=config(), storage=storage) as store:
        assert replayed(store) > 0


async def test_f9_what_is_left_when_the_budget_ends_is_listed(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    short = config(shutdown=ShutdownConfig(embedded_budget=0.05))
    async with open_store(tmp_path / "data", containers=1, config=short, storage=storage) as store:
        await fill(store, 5)
        storage.script = every(Fault(FaultKind.DELAY, seconds=0.5), "create", "create_with_content")

    assert store.end_report is not None
    (left,) = store.end_report.left
    assert (left.container, left.segments, left.bytes) == (0, 5, 5000)
    assert left.reason == "the budget of 0.05 s ended"
    storage.script = None
    async with open_store(tmp_path / "data", config=graceful(), storage=storage) as store:
        for number in range(5):
            assert await store.read(f"app/{number}", 0, 2000) == b"x" * 1000


async def test_f9_what_has_no_bytes_is_left_too_and_nothing_by_an_idle_store(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    for number in range(4):
        storage.script = None
        async with open_store(tmp_path / "data", containers=1, config=graceful(), storage=storage) as store:
            if number == 0:
                await store.create_table("table")
            await store.flush()
            storage.script = every(Fault(FaultKind.BEFORE))
            if number == 1:
                await store.table("table").put(b"key", b"value")
            elif number == 2:
                await store.create_segment("created")
        assert store.end_report is not None
        left = [(each.segments, each.bytes) for each in store.end_report.left]
        assert left == ([(1, 0)] if number in (1, 2) else []), number


async def test_f9_an_end_does_not_wait_for_storage_that_is_down(tmp_path: Path) -> None:
    """The breaker refuses changes: the budget, of a minute, is not used."""
    storage = storage_in(tmp_path)
    down = graceful(
        storage=StorageConfig(attempts=1, probe_interval=3600.0),
        writer=attrs.evolve(CONFIG.writer, error_pause=0.001),
    )
    async with open_store(tmp_path / "data", containers=1, config=down, storage=storage) as store:
        await fill(store, 2)
        storage.script = every(Fault(FaultKind.BEFORE))
        while store.statistics().storage.breaker.state != "open":  # type: ignore[union-attr]
            with pytest.raises(Unavailable):
                await store.flush()
    assert store.end_report is not None
    assert store.end_report.seconds < 5
    assert [left.reason for left in store.end_report.left] == ["long-term storage does not answer"]


async def test_f9_an_end_goes_on_when_storage_is_back(tmp_path: Path) -> None:
    """The breaker opens while the containers flush. When its pause is over, it lets one change pass (S7), and
    refuses those of the other containers until that is answered."""
    storage = storage_in(tmp_path)
    back = graceful(storage=StorageConfig(attempts=1, probe_interval=0.2))

    def fail_until_it_opens(call: Call) -> Fault | None:
        if call.verb not in CHANGES:
            return None
        if store.statistics().storage.breaker.opened:  # type: ignore[union-attr]
            return Fault(FaultKind.DELAY, seconds=0.02)
        return Fault(FaultKind.BEFORE)

    async with open_store(tmp_path / "data", containers=4, config=back, storage=storage) as store:
        await fill(store)
        storage.script = fail_until_it_opens
    assert store.statistics().storage.breaker.opened  # type: ignore[union-attr]
    assert store.end_report is not None
    assert store.end_report.left == ()


async def test_f9_a_cancelled_app_ends_gracefully_too(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    with anyio.CancelScope() as scope:
        async with open_store(tmp_path / "data", containers=1, config=graceful(), storage=storage) as store:
            await fill(store, 3)
            scope.cancel()
            await anyio.sleep_forever()
    assert store.end_report is not None
    assert store.end_report.left == ()
