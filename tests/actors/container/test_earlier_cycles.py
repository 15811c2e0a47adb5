"""A folder of the version before consistent cycles, whose elements may have images newer than the records
beside them: what its log has is whole, and its work, released files, transactions and backups go on."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from simulation.records import broken_records

from support.container_world import ContainerWorld, Owner, read_all, referenced_chunks, virtual_time
from support.sorted_runs import rows_of_run
from support.table_rows import records_of
from support.transactions import TARGET
from tierlog import StagedPart, TransactionEnded, TransactionState
from tierlog.actors.container.segment_rows import load_of_row
from tierlog.actors.maintenance.backup_objects import read_manifest, read_segments
from tierlog.journal.log.contract import GroupInfo
from tierlog.journal.log.memory import _LogState
from tierlog.journal.manifest.chain import read_chain
from tierlog.journal.operations.segment_image import SegmentImage, decode_image
from tierlog.storage_backends.chunks.memory import MemoryChunk
from tierlog.storage_backends.segments.records.segment import SegmentRecord, segment_key
from tierlog.storage_backends.sorted_runs.rows import Row

pytestmark = [pytest.mark.anyio, virtual_time]

GOLDEN = Path(__file__).parents[2] / "golden" / "container_without_consistent_cycles.json"
KEPT = b"kept " * 4 + b"by a writer and more, latemerged"
STAGED = f"{TARGET}#txn.open.b"


async def earlier_world() -> ContainerWorld:
    """Log and objects are those that the version before consistent cycles wrote."""
    world = ContainerWorld()
    kept = json.loads(GOLDEN.read_text())
    journal = world.logs._states["c0"] = _LogState(kept["epoch"])
    for *info, payload in kept["groups"]:
        journal.add(GroupInfo(*info), bytes.fromhex(payload))
    for name, content in kept["objects"].items():
        world.memory.chunks[name] = MemoryChunk(bytearray.fromhex(content))
    await world.chunks.open()
    return world


async def published(world: ContainerWorld) -> dict[bytes, Row]:
    """The rows that the newest element names."""
    newest = (await read_chain(world.chunks, 0)).newest
    assert newest is not None
    rows: dict[bytes, Row] = {}
    for run in newest.runs:
        for row in rows_of_run(run, bytes(world.memory.chunks[run.name].data)):
            rows.setdefault(row.key, row)
    return {key: row for key, row in rows.items() if row.value is not None}


def images_of(rows: dict[bytes, Row]) -> dict[str, SegmentImage]:
    loads = (load_of_row(row) for key, row in rows.items() if key.startswith(b"g:"))
    images = (decode_image(load.image) for load in loads if load is not None)
    return {image.name: image for image in images}


def record_of(rows: dict[bytes, Row], image: SegmentImage) -> SegmentRecord:
    value = rows[segment_key(image.sid).encode()].value
    assert value is not None
    return SegmentRecord.decode(value)


async def test_m13_images_of_an_earlier_version_may_be_newer_than_their_records() -> None:
    """So its elements alone do not describe a store."""
    rows = await published(await earlier_world())
    image = images_of(rows)["app/kept"]
    assert (image.length, record_of(rows, image).length) == (len(KEPT), 40)
    assert len(image.merges) == 1


async def check(owner: Owner) -> None:
    store = owner.store
    assert await read_all(store, "app/kept") == KEPT
    assert (await store.segment_info("app/kept")).length == len(KEPT)
    assert await read_all(store, TARGET) == b"basedata"
    assert await read_all(store, STAGED) == b"staged tail"
    assert await read_all(store, "app/unflushed") == b"in the log only"
    row = await store.table("app/users").get(b"key")
    assert row is not None
    assert row.value == b"value"
    listed = [(info.transaction_id, info.state) for info in await store.list_transactions()]
    assert listed == [("done", TransactionState.COMMITTED), ("open", TransactionState.OPEN)]
    with pytest.raises(TransactionEnded):
        await store.begin_transaction(TARGET, "done")
    assert not list(broken_records(owner.container))


@pytest.mark.parametrize("steps", [("crash", "checkpoint", "flush", "crash"), ("flush",)], ids=" ".join)
async def test_m13_a_folder_of_an_earlier_version_goes_on(steps: tuple[str, ...]) -> None:
    world = await earlier_world()
    async with anyio.create_task_group() as tasks:
        for step in steps:
            owner = await world.start(tasks)
            await check(owner)
            if step == "flush":
                await owner.store.flush()
                await check(owner)
            if step == "checkpoint":
                await owner.checkpoint()
            await owner.crash()
        owner = await world.start(tasks)
        await check(owner)
        # The writer's last event came while the cycle was under way.
        await owner.store.append("app/kept", b"again", writer_id="w", event_number=8)
        assert await read_all(owner.store, "app/kept") == KEPT
        parts = [StagedPart(STAGED, len(b"staged tail"))]
        await owner.store.commit_transaction(TARGET, "open", parts)
        assert await read_all(owner.store, TARGET) == b"basedatastaged tail"
        await owner.store.flush()
        await anyio.sleep(600)

        left = [key for key in records_of(owner.container) if key.startswith(("d:", "x:"))]
        assert all(key.endswith(":defrag") for key in left), "too few chunks to join are counted"
        assert world.chunk_names == referenced_chunks(owner.container)
        assert not any(name.startswith("app/old$offset") for name in world.memory.chunks)
        rows = await published(world)
        images = images_of(rows)
        assert sorted(images) == ["app/events", "app/kept", "app/unflushed", "app/users"]
        for name in ("app/events", "app/kept", "app/unflushed"):
            assert images[name].length == record_of(rows, images[name]).length
        await owner.stop()


async def test_s16_a_backup_of_an_earlier_version_is_read() -> None:
    world = await earlier_world()
    manifest = await read_manifest(world.chunks, "earlier")
    segments = {each.image.name: each for each in await read_segments(world.chunks, manifest)}
    assert sorted(segments) == ["app/big", "app/events", "app/kept", "app/old"]
    assert segments["app/kept"].image.length == 31
