"""The room for a run list in an element: runs that grow, merges that make it shorter, and appends that are
refused while rows cannot be published (rule M12)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio
import attrs
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, read_all, virtual_time
from support.stores import make
from support.table_rows import fail_merged_runs, fill_up
from tierlog.actors.container import table_runs
from tierlog.journal.manifest.chain import read_chain
from tierlog.journal.manifest.element import CONSISTENT, ELEMENT_BYTES_MAX
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import StorageFull, Throttled
from tierlog.storage_backends.sorted_runs import compaction_policy
from tierlog.storage_backends.sorted_runs.put import encode_run

pytestmark = [pytest.mark.anyio, virtual_time]

LIST_BYTES_MAX = 48 << 10


async def add_record(owner: Owner, key: str) -> None:
    """A record with a long key, as an imported file with a long name has, in a run of its own."""
    await owner.container.metadata.commit({key: 0}, {key: b"value"})
    await owner.store.append("s", b"a")
    await owner.store.flush()


@pytest.fixture
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run lists have a fifth of their room."""
    monkeypatch.setattr(table_runs, "RUN_LIST_BYTES_MAX", LIST_BYTES_MAX)


@pytest.mark.usefixtures("short_lists")
async def test_m12_the_run_list_of_an_element_has_a_bound_that_merges_keep() -> None:
    """Thirty runs with keys of 1 KiB would make an element too large to be read."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        for number in range(60):
            await add_record(owner, f"z:{number:02d}" + "k" * 1000)
            await anyio.sleep(1)
        assert owner.container.statistics().table.unpublished == 0
        assert owner.container.state.manifest.runs.size <= LIST_BYTES_MAX // 2 + 2500
        assert len(await owner.container.metadata.scan("z:")) == 60
    async with world.owner() as owner:
        assert len(await owner.container.metadata.scan("z:")) == 60


async def test_m12_the_run_list_has_room_however_many_rows_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With runs of one size, here 2 KiB instead of 16 MiB, it has room for a table of 160 KiB."""
    monkeypatch.setattr(table_runs, "RUN_LIST_BYTES_MAX", 16 << 10)
    monkeypatch.setattr(compaction_policy, "RUN_BYTES_MAX", 2048)
    monkeypatch.setattr(table_runs, "encode_run", partial(encode_run, run_bytes_max=2048))
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=3))
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        for number in range(40):
            keys = [f"z:{number:02d}/{row:02d}" for row in range(10)]
            await owner.container.metadata.commit(
                dict.fromkeys(keys, 0), {key: key.encode() * 100 for key in keys}
            )
            await owner.store.append("s", b"a")
            await owner.store.flush()
            await anyio.sleep(1)
        statistics = owner.container.statistics().table
        assert (statistics.unpublished, statistics.rows) == (0, 0)
        assert statistics.run_bytes > 250_000
        assert statistics.list_bytes == owner.container.state.manifest.runs.size <= 16 << 10
        assert len(await owner.container.metadata.scan("z:")) == 400


async def test_m12_appends_are_refused_while_too_many_rows_wait_and_go_on_once_there_is_room() -> None:
    """Also if nobody flushes, and none of the refused appends makes a cycle due."""
    admission = attrs.evolve(OPTIONS.admission, row_bytes=40_000)
    world = ContainerWorld(replace(OPTIONS, admission=admission))
    async with world.owner() as owner:
        world.chunks.script = fill_up
        with pytest.raises(Throttled, match="wait in memory to be published"):
            for number in range(100):
                await make(owner.store, f"many/{number}", b"bytes " * 10)
                await owner.store.flush()
        assert owner.container.state.table.memory < 50_000
        assert await read_all(owner.store, "many/1") == b"bytes " * 10
        await owner.store.flush()
        elements = owner.container.state.manifest.highest_cycle
        for _ in range(100):
            with pytest.raises(Throttled):
                await owner.store.append("many/1", b"x")
            await anyio.sleep(1)
        assert owner.container.state.manifest.highest_cycle <= elements + 12, "one each ten seconds"

        world.chunks.script = None
        await anyio.sleep(10)
        with pytest.raises(Throttled):
            await owner.store.append("many/1", b"x")
        await anyio.sleep(1)
        await owner.store.append("many/1", b"x")
        assert len(owner.container.state.table.runs) > 0
        assert owner.container.statistics().admission.refused_rows == 102


def blocks(size: int) -> int:
    return -(-size // 4096)


async def test_j9_on_full_storage_deletions_go_on_also_if_the_newest_element_is_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The room of the one before it is not enough for a proof, and nothing was ever deleted."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=1000))
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await make(owner.store, "deleted", b"abc", flushed=True)
        while True:
            await add_record(owner, f"z:{world.world.new_id()}" + "k" * 500)
            manifest = owner.container.state.manifest
            assert manifest.head is not None
            assert manifest.previous is not None
            if blocks(len(manifest.previous.content)) < blocks(len(manifest.head.content)) > 2:
                break
        await anyio.sleep(300)

        def used() -> int:
            return sum(blocks(len(chunk.data)) for chunk in world.memory.chunks.values())

        capacity, create = used(), owner.container.chunks.create_with_content

        async def create_if_there_is_room(name: str, content: Sequence[Buffer]) -> int:
            if used() + blocks(sum(map(len, content))) > capacity:
                raise StorageFull("no room")
            return await create(name, content)

        monkeypatch.setattr(owner.container.chunks, "create_with_content", create_if_there_is_room)
        chunks = world.chunk_names
        await owner.store.delete_segment("deleted")
        await owner.store.flush()
        await anyio.sleep(300)
        assert world.chunk_names < chunks
        assert len((await read_chain(world.chunks, 0)).elements) <= 2


async def test_j2_an_element_that_nobody_could_read_is_not_recorded() -> None:
    """A cycle and a merge may each have room and none together."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await make(owner.store, "s", b"abc")
        await owner.store.flush()
        [run] = owner.container.state.table.runs
        long = b"k" * 8000
        runs = [
            replace(
                run,
                name=f"{run.name}-{number:04d}",
                first_cycle=2,
                last_cycle=2,
                summary=replace(
                    run.summary, first_key=b"%02da" % number + long, last_key=b"%02db" % number + long
                ),
            )
            for number in range(82)
        ]
        before = owner.container.state.manifest
        with pytest.raises(StorageFull, match=f"at most {ELEMENT_BYTES_MAX} bytes"):
            await owner.container.ownership.complete_cycle(
                owner.container.state.sequence, lambda before: before.published(runs, CONSISTENT)
            )
        assert owner.container.state.manifest == before
        await owner.container.ownership.prove_anew()
        assert not (await read_chain(world.chunks, 0)).problems


@pytest.mark.usefixtures("short_lists")
async def test_m12_no_more_runs_are_published_than_an_element_has_room_for() -> None:
    """While they cannot be merged the rows stay in memory and in the log."""
    world = ContainerWorld()
    async with world.owner() as owner:
        world.chunks.script = fail_merged_runs
        await make(owner.store, "s", b"abc")
        for number in range(40):
            await add_record(owner, f"z:{number:02d}" + "k" * 1000)
        statistics = owner.container.statistics().table
        assert 0 < statistics.unpublished < 40
        assert owner.container.state.manifest.runs.size <= LIST_BYTES_MAX
        assert all(each.position for each in (await read_chain(world.chunks, 0)).elements)
        assert owner.container.copies.statistics().copies == statistics.runs + 1, "a merged run waits"
        assert len(await owner.container.metadata.scan("z:")) == 40

        world.chunks.script = None
        await anyio.sleep(60)
        for number in range(40, 44):
            await add_record(owner, f"z:{number:02d}" + "k" * 1000)
        assert owner.container.state.table.rows == 0
        assert len(await owner.container.metadata.scan("z:")) == 44
