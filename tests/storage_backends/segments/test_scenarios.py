"""The scenarios that a chunked segment storage must survive, and the module that tests each.

- create, write, read, seal, delete; bad offset, sealed, unknown segment, bad arguments:
  ``test_operations``
- one transaction per segment, others beside it: ``test_operations``, here
- a fenced record store, a record of a later owner: here, ``test_operations``
- an I/O failure at every call, then a retry; a partial write, an unknown outcome, a cancelled write:
  ``test_failures``
- a record store that fails at every k-th commit: here, ``test_failures``
- takeovers with late bytes of the old owner: here, ``test_failures``
- reads across chunks, of ranges, past the end, cold: ``test_reading``
- readers beside a writer, a truncation, a defrag: ``test_reading``, ``test_defrag``
- the block index through every operation: ``test_layouts``, ``test_model``
- concat of every shape, garbage tails, refusals: ``test_layouts``, ``test_operations``
- defrag thresholds, inline, as deferred work: ``test_defrag``, ``test_defrag_rules``,
  ``test_defrag_deferred_work``
- truncation at every offset, twice, at the end: ``test_layouts``
- relocation thresholds, failure to copy, damage: ``test_defrag``, ``test_defrag_deferred_work``
- offsets above 2 GiB: ``test_layouts``, here
- rolling by 1, 2, 3, ... bytes: ``test_layouts``
- storage full, and room again: here, ``test_failures``; quotas: ``tests/actors/chunk_io``
- any of it in any order: ``test_model``, and the simulator
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import pytest

from support.chunked import OTHER, SID, FailingMetadataStore, FaultyMetadataStore, MetadataFault, Owner, Tier2
from support.layouts import TEXT, build
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import NotOwner, OutcomeUnknown, StorageFull, Unavailable
from tierlog.storage_backends.segments.defrag_rules import DefragOptions, plan_packed, plan_tiers, relocates
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, every

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
OPTIONS = ChunkedOptions(
    index_spacing=2,
    defrag=DefragOptions(
        small_max=8, growth=2, loose_chunks=2, relocate_above=2, relocate_max=99, relocate_share=0.5
    ),
)
PRIMES = (2, 3, 5, 7, 11)
GIB = 1 << 30


@pytest.fixture(params=[True, False], ids=["append", "no-append"])
def tier2(request: pytest.FixtureRequest) -> Tier2:
    return Tier2(append=request.param, options=OPTIONS)


async def run_all_deferred(owner: Owner) -> None:
    while pending := await owner.storage.deferred_work():
        await owner.storage.run_deferred(pending[0])


async def test_late_bytes_after_each_of_many_takeovers(tier2: Tier2) -> None:
    """Old owners grow every chunk they know after they were succeeded; truncations and joins come in
    between."""
    data, start = b"", 0
    for epoch in range(1, 30):
        owner = await tier2.owner(epoch)
        await owner.write(len(data), TEXT[epoch : epoch + 3])
        data += TEXT[epoch : epoch + 3]
        if epoch % 4 == 0:
            start = len(data) - 5
            await owner.truncate(start)
        if epoch % 3 == 0:
            await run_all_deferred(owner)
        for chunk in tier2.chunks.chunks.values():
            chunk.data += b"late"

        assert await owner.content() == data[start:]


@pytest.mark.parametrize("k", PRIMES)
@pytest.mark.parametrize("fault", MetadataFault)
async def test_the_record_store_fails_at_every_kth_commit(tier2: Tier2, k: int, fault: MetadataFault) -> None:
    """Writes, truncations, concats and deferred work, each repeated until it took effect: nothing is lost,
    nothing is twice."""
    metadata = FailingMetadataStore(tier2.metadata)
    owner = await tier2.owner(metadata=metadata)
    commits = 0

    async def until_applied(act: Callable[[], Awaitable[object]]) -> None:
        nonlocal commits
        applied = False
        while not applied:
            commits += 1
            metadata.fault = fault if commits % k == 0 else None
            try:
                await act()
            except (Unavailable, OutcomeUnknown):
                applied = metadata.applied
            else:
                applied = True

    data = b""
    for step in range(8):
        part = TEXT[10 * step : 10 * step + 4]
        sid = OTHER + step
        await until_applied(partial(owner.write, len(data), part))
        await until_applied(partial(owner.write, 0, b"+++", sid=sid, seal=True))
        await until_applied(partial(owner.concat, sid))
        await until_applied(partial(owner.truncate, 2 * step))
        await until_applied(partial(run_all_deferred, owner))
        data += part + b"+++"

        assert await owner.content() == data[2 * step :]
    new = await tier2.owner(2)
    await run_all_deferred(new)
    assert await new.content() == data[14:]
    assert set(tier2.referenced()) == {record.name for _, record in await new.storage.chunks(SID)}


async def test_a_fenced_record_store_ends_every_change(tier2: Tier2) -> None:
    await build(await tier2.owner(), [4, 2, 1, 1])
    await (await tier2.owner()).write(0, b"source", sid=OTHER, seal=True)
    changes: list[Callable[[Owner], Awaitable[object]]] = [
        lambda owner: owner.write(8, b"x"),
        lambda owner: owner.truncate(3),
        lambda owner: owner.concat(),
        lambda owner: owner.delete(),
        lambda owner: owner.storage.defrag(SID),
    ]
    for change in changes:
        owner = await tier2.owner(
            metadata=FaultyMetadataStore(tier2.metadata, 1, NotOwner("scripted"), after=False)
        )
        with pytest.raises(NotOwner):
            await change(owner)
        assert await owner.content() == TEXT[:8]
        assert await owner.content(OTHER) == b"source"


async def test_a_full_storage_refuses_writes_and_joins_and_lets_the_rest_continue(tier2: Tier2) -> None:
    await build(await tier2.owner(), [4, 2, 1, 1])
    await (await tier2.owner()).write(0, b"source", sid=OTHER, seal=True)
    owner = await tier2.owner(2)
    owner.chunks.script = every(Fault(FaultKind.FULL), "write", "create_with_content", "concat")
    with pytest.raises(StorageFull):
        await owner.write(8, b"x")
    with pytest.raises(StorageFull):
        await owner.storage.defrag(SID)
    await owner.concat()
    await owner.truncate(4)
    assert await owner.content() == TEXT[4:8] + b"source"

    owner.chunks.script = None
    await owner.write(14, b"!")
    await run_all_deferred(owner)
    assert await owner.content() == TEXT[4:8] + b"source!"


async def test_segments_side_by_side(tier2: Tier2) -> None:
    """Many tasks, each with a segment of its own, between them writes, truncations and joins."""
    owner = await tier2.owner()

    async def live(sid: int) -> None:
        data = b""
        for step in range(12):
            await owner.write(len(data), bytes([sid, step]), sid=sid)
            data += bytes([sid, step])
            if step % 5 == 4:
                await owner.truncate(step, sid)
            if step % 4 == 3:
                await owner.storage.defrag(sid)
            start = (await owner.storage.info(sid)).start_offset
            assert await owner.content(sid) == data[start:]

    async with anyio.create_task_group() as tasks:
        for sid in range(1, 9):
            tasks.start_soon(live, sid)


@pytest.mark.parametrize("plan", [plan_tiers, plan_packed])
def test_chunks_above_2_gib(plan: object) -> None:
    """Lengths and offsets are whole numbers of any size: nothing wraps at 31, 32 or 53 bits."""
    options = DefragOptions(small_max=1 << 59, growth=2, relocate_above=0, relocate_max=1 << 60)
    lengths: Sequence[int] = [3 * GIB, 3 * GIB, 5, (1 << 54) + 1]
    [run, *_] = plan(lengths, options, 1 << 56)  # type: ignore[operator]  # both have one form
    assert run.length == sum(lengths[run.first : run.end])
    assert relocates(5 * GIB, 4 * GIB + 1, options)
    assert not relocates(5 * GIB, 4 * GIB - 1, options)


async def test_relocation_above_2_gib(tier2: Tier2) -> None:
    """A segment that begins far behind 4 GiB, without the bytes before."""
    data: Buffer = TEXT[:20]
    owner = await tier2.owner()
    await owner.write(0, data)
    record = await owner.storage.info(SID)
    [(_, chunk)] = await owner.storage.chunks(SID)
    far = 5 * GIB
    moved = type(record)(SID, far + 20, far, chunk.name, chunk.name, far, far, 1, owner_epoch=1)
    tier2.metadata.entries[record.key] = (9, moved.encode())
    owner = await tier2.owner(2)
    await owner.truncate(far + 15)
    await run_all_deferred(owner)

    assert await owner.lengths() == [5]
    assert await owner.content() == data[15:]
    await owner.write(far + 20, b"more")
    assert await owner.content() == bytes(data[15:]) + b"more"
