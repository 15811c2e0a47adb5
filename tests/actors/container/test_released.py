"""Imported files that no segment needs any more: collected whatever happens in between, and never imported
meanwhile (rules G3, S19)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, read_all, until
from support.legacy_layout import write_header, write_legacy
from support.table_rows import decided_import, records_of, write_record
from tierlog.actors.container.operations.import_segment import ImportRequest
from tierlog.actors.container.state import ContainerState
from tierlog.actors.legacy_rolling.importing import import_segment
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.storage_backends.base.errors import InvalidArgument
from tierlog.storage_backends.segments.chain import Chain
from tierlog.storage_backends.segments.defrag_rules import DefragOptions
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import (
    ChunkRecord,
    ReleasedRecord,
    chunk_key,
    released_key,
    released_names,
)
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, every

pytestmark = pytest.mark.anyio

NAME = "app/old"
FILES = [f"{NAME}$offset.{start}" for start in (0, 4, 6)]
LATE = replace(
    OPTIONS,
    chunked=ChunkedOptions(defrag=DefragOptions(loose_chunks=0, relocate_above=0, relocate_share=0.5)),
)
"""What is released waits so long that a crash comes first."""
EAGER = replace(LATE, collector=replace(OPTIONS.collector, delay=0.0))


@pytest.fixture
async def world() -> ContainerWorld:
    """A segment of the legacy layout with three files: ``0123``, ``45`` and ``6789``."""
    world = ContainerWorld(LATE)
    await world.chunks.open()
    await write_legacy(world.chunks, NAME, b"0123", b"45", b"6789", max_size=100)
    return world


def left(world: ContainerWorld) -> list[str]:
    """The data files that are there."""
    return sorted(name for name in world.memory.chunks if "$offset." in name)


def recorded(owner: Owner) -> list[str]:
    return released_names(records_of(owner.container))


async def delete(owner: Owner) -> None:
    await owner.store.delete_segment(NAME)


async def truncate(owner: Owner) -> None:
    await owner.store.truncate_segment(NAME, 4)


async def defrag(owner: Owner) -> None:
    sid = (await owner.store.segment_info(NAME)).segment_id
    assert sid is not None
    await owner.container.storage.defrag(sid)


async def relocate(owner: Owner) -> None:
    await owner.store.truncate_segment(NAME, 9)


async def merge_and_delete(owner: Owner) -> None:
    await owner.store.create_segment("app/target")
    await owner.store.seal_segment(NAME)
    await owner.store.merge_segments("app/target", [NAME])
    await owner.store.flush()
    assert recorded(owner) == []  # merging alone releases nothing
    await owner.store.delete_segment("app/target")


async def die_after(
    world: ContainerWorld, act: Callable[[Owner], Awaitable[None]], *, checkpoint: bool = False
) -> list[str]:
    """An owner imports, does ``act``, flushes and dies before it deletes anything; the files that it had
    released."""
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await import_segment(owner.container, NAME)
        await act(owner)
        await owner.store.flush()
        await until(lambda: bool(recorded(owner)))
        while await owner.container.storage.deferred_work():
            await owner.store.flush()
        released = recorded(owner)
        if checkpoint:
            await owner.checkpoint()
        await owner.crash()
    assert left(world) == FILES
    return released


# --- a crash between release and delete ---------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize(
    ("act", "released"),
    [(delete, FILES), (truncate, FILES[:1]), (defrag, FILES), (relocate, FILES), (merge_and_delete, FILES)],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_g3_the_next_owner_collects_files_released_before_a_crash(
    world: ContainerWorld, act: Callable[[Owner], Awaitable[None]], released: list[str], checkpoint: bool
) -> None:
    assert await die_after(world, act, checkpoint=checkpoint) == released

    async with world.owner(EAGER) as owner:
        await until(lambda: not recorded(owner))
        assert left(world) == [name for name in FILES if name not in released]
        assert f"{NAME}$header" in world.memory.chunks
        if act in (truncate, defrag):
            start = 4 if act is truncate else 0
            assert await read_all(owner.store, NAME, start) == b"0123456789"[start:]


async def test_g3_a_crash_between_the_delete_and_its_record_is_no_error(world: ContainerWorld) -> None:
    await die_after(world, delete)
    world.chunks.script = every(Fault(FaultKind.AFTER), "delete")  # done, and the collector does not know
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks, EAGER)
        await until(lambda: not left(world))
        assert recorded(owner) == FILES
        await owner.crash()

    world.chunks.script = None
    async with world.owner(EAGER) as owner:
        await until(lambda: not recorded(owner))
        assert owner.container.statistics().collector.already_gone in (3, 4)  # perhaps the claim too
        await owner.stop()
        assert owner.error is None


async def test_g3_the_removal_of_a_record_is_durable(world: ContainerWorld) -> None:
    await die_after(world, delete)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks, EAGER)
        await until(lambda: not recorded(owner))
        await owner.container.wait_durable()
        await owner.crash()

    async with world.owner(EAGER) as owner:
        assert recorded(owner) == []


async def test_g3_while_deletes_fail_the_record_stays_over_owners(world: ContainerWorld) -> None:
    await die_after(world, delete)
    world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
    async with world.owner(replace(EAGER, collector=replace(EAGER.collector, attempts=1))) as owner:
        await until(lambda: owner.container.statistics().collector.retry_later >= 3)
        assert recorded(owner) == FILES

    world.chunks.script = None
    async with world.owner(EAGER) as owner:
        await until(lambda: not recorded(owner))
        assert left(world) == []


async def test_g3_without_a_crash_the_record_is_removed_after_its_file(world: ContainerWorld) -> None:
    async with world.owner(EAGER) as owner:
        await import_segment(owner.container, NAME)
        await owner.store.delete_segment(NAME)
        await owner.store.flush()
        await until(lambda: not left(world) and not recorded(owner))


async def test_s19_a_stores_own_chunks_have_no_such_record(world: ContainerWorld) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment("app/new")
        await owner.store.append("app/new", b"data")
        await owner.store.flush()
        assert world.chunk_names
        await owner.store.delete_segment("app/new")
        await owner.store.flush()
        assert recorded(owner) == []
        assert not [key for key in records_of(owner.container) if key.startswith(chunk_key(""))]


async def test_s19_a_record_that_only_newer_code_understands_is_kept_with_its_file(
    world: ContainerWorld,
) -> None:
    await die_after(world, delete)
    newer = ReleasedRecord(FILES[1], 2).encode().replace(b"\x06\x01", b"\x06\x02", 1)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        key = released_key(FILES[1])
        metadata = owner.container._components.storage._context.metadata
        await metadata.commit({key: records_of(owner.container)[key][0]}, {key: newer})
        await owner.checkpoint()
        await owner.crash()

    async with world.owner(EAGER) as owner:
        await until(lambda: recorded(owner) == [FILES[1]])
        await owner.store.flush()
        assert left(world) == [FILES[1]]
        assert records_of(owner.container)[key][1] == newer


# --- imports ------------------------------------------------------------------------------------


async def test_s19_a_file_that_is_about_to_be_deleted_is_not_imported(world: ContainerWorld) -> None:
    """Under another name: its own was taken."""
    await write_header(world.chunks, "app/thief", f"maxsize=9&0={FILES[0]}&".encode())
    await die_after(world, delete)
    async with world.owner(LATE, layout=LayoutMode.LAYOUT_UPGRADE) as owner:
        assert FILES[0] in recorded(owner)
        calls = len(world.chunks.calls)
        for attempt in (import_segment(owner.container, "app/thief"), owner.store.segment_info("app/thief")):
            with pytest.raises(
                InvalidArgument, match=r"cannot be imported: app/old\$offset.0 .* about to be deleted"
            ):
                await attempt
        assert FILES[0] not in [call.name for call in world.chunks.calls[calls:] if call.verb == "read"]


async def test_s19_an_import_that_was_reading_when_its_file_was_released_is_refused() -> None:
    state = ContainerState(epoch=1)
    record = ReleasedRecord(FILES[0], 4)
    write_record(state, record.key, record.encode())
    chunk = ChunkRecord(FILES[0]).grown([b"0123"])

    with pytest.raises(InvalidArgument, match="about to be deleted"):
        await decided_import(
            state, ImportRequest.of_chain("app/thief", Chain(4, 0, True, 100, ((0, chunk),)), 1 << 20)
        )
