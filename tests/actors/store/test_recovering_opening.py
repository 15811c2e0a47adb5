"""Opening a store whose logs are missing: what is said, and the choice to recover it (rule R11)."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import attrs
import pytest

from support.folders import fingerprint, flip_bit
from support.live_service import SyncOwnService
from tierlog import (
    DataCorruption,
    InvalidArgument,
    SegmentStore,
    StoreConfig,
    StoreMismatch,
    Unavailable,
    open_store,
)
from tierlog.actors.settings.configuration import SupervisionConfig, WriterConfig
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, FaultyChunkStorage, every

pytestmark = pytest.mark.anyio

QUIET = StoreConfig(writer=WriterConfig(flush_age=3600.0))
NAMES = [f"s{number}" for number in range(8)]


async def make(folder: Path) -> None:
    """Of two containers, with something that is not flushed in each segment."""
    async with open_store(folder, containers=2, config=QUIET) as store:
        for name in NAMES:
            await store.create_segment(name)
            await store.append(name, b"flushed")
        await store.flush()
        for name in NAMES:
            await store.append(name, b" and lost")


async def contents(store: SegmentStore) -> set[bytes]:
    return {await store.read(name, 0, 100) for name in await store.list_segments()}


async def test_r11_a_store_without_its_logs_is_refused_and_the_choice_is_named(tmp_path: Path) -> None:
    await make(tmp_path)
    shutil.rmtree(tmp_path / "wal")
    before = fingerprint(tmp_path)
    with pytest.raises(StoreMismatch, match=r"open_store\(recover_from_lts=True\)"):
        async with open_store(tmp_path):
            pass
    assert fingerprint(tmp_path) == before


async def test_r11_it_is_recovered_if_that_is_chosen_and_opened_as_ever_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make(tmp_path)
    shutil.rmtree(tmp_path / "wal")
    caplog.set_level(logging.WARNING, "tierlog.node")
    async with open_store(tmp_path, config=QUIET, recover_from_lts=True) as store:
        assert await contents(store) == {b"flushed"}
        for name in NAMES:
            await store.append(name, b" again")
    recovered = [record for record in caplog.messages if "recovered_from_lts" in record]
    assert ["cycle=1" in line and "complete='2" in line for line in recovered] == [True, True]
    caplog.clear()
    async with open_store(tmp_path, config=QUIET, recover_from_lts=True) as store:
        assert (await store.segment_info(NAMES[0])).length == len(b"flushed again")
    assert not caplog.messages


async def test_r11_nothing_is_made_where_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="has no lts/"):
        async with open_store(tmp_path / "new", recover_from_lts=True):
            pass
    assert not (tmp_path / "new").exists()
    with pytest.raises(InvalidArgument, match="not a storage of yours"):
        async with open_store(tmp_path / "new", storage=MemoryChunkStorage(), recover_from_lts=True):
            pass


async def test_r11_a_broken_chain_is_refused(tmp_path: Path) -> None:
    await make(tmp_path)
    shutil.rmtree(tmp_path / "wal")
    flip_bit(max((tmp_path / "lts/_system/containers/0000/journal").iterdir()), 50)
    before = fingerprint(tmp_path)
    with pytest.raises(DataCorruption):
        async with open_store(tmp_path, recover_from_lts=True):
            pass
    assert fingerprint(tmp_path) == before


async def test_r11_the_log_of_one_container_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    """Neither if somebody says that the folder lives."""
    await make(tmp_path)
    (tmp_path / "wal/0001").rename(tmp_path / "kept")
    before = fingerprint(tmp_path / "lts/_system/containers/0001")
    for adopt in (False, True, True, False):
        with pytest.raises(StoreMismatch, match=r"container 1: its log is lost.*--from-lts --container 1"):
            async with open_store(tmp_path, config=QUIET, adopt=adopt):
                pass
    assert fingerprint(tmp_path / "lts/_system/containers/0001") == before
    shutil.rmtree(tmp_path / "wal/0001")
    (tmp_path / "kept").rename(tmp_path / "wal/0001")
    async with open_store(tmp_path, config=QUIET) as store:
        assert {(await store.segment_info(name)).length for name in NAMES} == {len(b"flushed and lost")}


async def test_r11_a_log_that_holds_nothing_is_not_served_before_the_chain_can_be_read(
    tmp_path: Path,
) -> None:
    """Or else it would ack what is refused once long-term storage answers again."""
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    settings = attrs.evolve(QUIET, supervision=SupervisionConfig(restarts=0))

    async def open_once() -> None:
        async with open_store(tmp_path, containers=2, config=settings, storage=chunks) as store:
            for name in NAMES:
                await store.create_segment(name, exist_ok=True)
                await store.append(name, b"flushed")
            await store.flush()

    await open_once()
    (tmp_path / "wal/0001").rename(tmp_path / "kept")
    chunks.script = every(Fault(FaultKind.BEFORE), "list", "read", "info")
    with pytest.raises(Unavailable):
        await open_once()
    chunks.script = None
    with pytest.raises(StoreMismatch, match="container 1: its log is lost"):
        await open_once()
    shutil.rmtree(tmp_path / "wal/0001")
    (tmp_path / "kept").rename(tmp_path / "wal/0001")
    await open_once()


@pytest.mark.parametrize("refusals", [0, 2])
async def test_r11_one_container_is_recovered_if_that_is_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refusals: int
) -> None:
    """Also if openings without the choice have made an empty log, with an epoch above the lost one's."""
    await make(tmp_path)
    shutil.rmtree(tmp_path / "wal/0001")
    for number in range(refusals):
        with pytest.raises(StoreMismatch, match="its log is lost"):
            async with open_store(tmp_path, config=QUIET, adopt=number == 1):
                pass
    caplog.set_level(logging.WARNING, "tierlog.node")
    caplog.clear()
    for _ in range(2):
        async with open_store(tmp_path, config=QUIET, recover_from_lts=True) as store:
            assert await contents(store) == {b"flushed", b"flushed and lost"}
    lines = [line for line in caplog.messages if "recovered_from_lts" in line]
    assert ["container=1" in line and "cycle=1" in line for line in lines] == [True]


async def test_r11_a_damaged_log_is_declared_lost_by_an_operator_only(tmp_path: Path) -> None:
    await make(tmp_path)
    flip_bit(max((tmp_path / "wal/0001").glob("*.wal")), 600)
    before = sorted(path.name for path in (tmp_path / "wal").iterdir())
    with pytest.raises(DataCorruption):
        async with open_store(tmp_path, config=QUIET, recover_from_lts=True):
            pass
    assert sorted(path.name for path in (tmp_path / "wal").iterdir()) == before


async def test_r11_a_service_recovers_if_that_is_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    await make(folder)
    with SyncOwnService(folder, hosts=1):
        pass  # it leaves `supervisor/` beside the chunks
    shutil.rmtree(folder / "wal")
    with SyncOwnService(folder, "--recover-from-lts", hosts=1) as service:
        read = service.client.get(f"/v1/segments/{NAMES[0]}/bytes")
        assert read.content == b"flushed and lost"
        events = [json.loads(line) for line in service.log.splitlines() if line.startswith("{")]
    found = [each for each in events if each["event"] == "recovered_from_lts"]
    assert [(each["container"], each["cycle"]) for each in found] == [(0, 2), (1, 2)]


async def test_r11_a_service_recovers_one_container_if_that_is_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    await make(folder)
    shutil.rmtree(folder / "wal/0001")
    with SyncOwnService(folder, "--recover-from-lts", hosts=1) as service:
        read = {service.client.get(f"/v1/segments/{name}/bytes").content for name in NAMES}
        events = [json.loads(line) for line in service.log.splitlines() if line.startswith("{")]
    assert read == {b"flushed", b"flushed and lost"}
    found = [each for each in events if each["event"] == "recovered_from_lts"]
    assert [(each["container"], each["cycle"]) for each in found] == [(1, 1)]
