"""A container's chain and system table over many owners, with the garbage drained at every step: takeovers,
zombies, truncations, creations that fail, come late or come twice (rules J1 to J11, M6 to M13)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import combinations, product

import anyio
import anyio.lowlevel
import attrs
import pytest
from msgspec.structs import replace
from simulation.records import chain, segment_records

from support.container_world import OPTIONS, ContainerWorld, Owner, read_all, virtual_time
from support.drained import TICK, drain
from support.sorted_runs import rows_of_run
from support.stores import make
from support.table_rows import RUNS, records_of
from tierlog import NotOwner
from tierlog.actors.container.options import ContainerOptions
from tierlog.actors.container.segment_rows import image_key
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.journal.manifest.chain import journal_prefix, read_chain
from tierlog.journal.manifest.element import Element
from tierlog.journal.manifest.store_record import STORE_RECORD
from tierlog.storage_backends.base.errors import DataCorruption, OutcomeUnknown, TierlogError, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunk, MemoryChunkStorage
from tierlog.storage_backends.segments.records.chunk import ChunkRecord
from tierlog.storage_backends.segments.records.segment import SegmentRecord, segment_key
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_files import path_of
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage

pytestmark = [pytest.mark.anyio, virtual_time]

QUICK = replace(
    OPTIONS, collector=CollectorOptions(delay=1, listings=(0, 10, 40), retry_pause=5, retry_pause_max=10)
)
UNMERGED = replace(QUICK, merge_fan_out=1000)
MERGED = replace(QUICK, merge_fan_out=2)
"""Nearly each cycle is followed by a merge."""
merged = pytest.mark.parametrize("options", [UNMERGED, MERGED], ids=["unmerged", "merged"])
REFUSED = (NotOwner, OutcomeUnknown, Unavailable)
"""Of a call that a zombie is asked for."""
RETRIES = 400.0
"""Seconds after which all that failed is tried again."""
LATE_LISTING = 50.0
"""Seconds after which an owner has listed three times what dead owners left (rule G5)."""


async def first_owner(world: ContainerWorld, *names: str) -> None:
    async with world.owner() as owner:
        for name in (TICK, *names):
            await owner.store.create_segment(name)
        await drain(world, owner)


@merged
@pytest.mark.parametrize("failovers", [2, 9])
async def test_bytes_and_lengths_are_the_same_after_any_number_of_takeovers(
    failovers: int, options: ContainerOptions
) -> None:
    world = ContainerWorld(options)
    await first_owner(world, "s")
    written = b""
    async with anyio.create_task_group() as tasks:
        for number in range(1 + failovers):
            owner = await world.start(tasks)
            assert await read_all(owner.store, "s") == written
            await owner.store.append("s", b"Test%d" % number)
            written += b"Test%d" % number
            await make(owner.store, f"of/{number}", b"%d" % number)
            await drain(world, owner)
            await owner.store.append("s", b"!")  # only the log has it
            written += b"!"
            await owner.crash()
        async with world.owner() as owner:
            await drain(world, owner)
            assert await read_all(owner.store, "s") == written
            for number in range(1 + failovers):
                assert await read_all(owner.store, f"of/{number}") == b"%d" % number


def write_behind(world: ContainerWorld) -> None:
    """A flush of an owner that was replaced takes effect late: the newest chunk grows. The bytes are not
    those that were acked, so that a reader of them would show it."""
    world.memory.chunks[max(world.chunk_names)].add(b"junk")


@merged
async def test_nine_owners_each_followed_by_the_writes_of_the_one_before(options: ContainerOptions) -> None:
    """W1, S3: each owner lives on as a zombie behind its successor. Nothing that it still calls is
    acknowledged, and nothing that it still writes is read."""
    world = ContainerWorld(options)
    await first_owner(world, "s")
    async with anyio.create_task_group() as tasks:
        zombie, acked = await world.start(tasks), b""
        await zombie.store.append("s", b"0")
        await drain(world, zombie)
        await zombie.store.append("s", b"tail")
        for number in range(9):
            owner = await world.start(tasks)
            await owner.store.append("s", b"Test%d" % number)
            acked += b"tailTest%d" % number
            with pytest.raises(REFUSED):
                await zombie.store.append("s", b"junk")
            with pytest.raises(REFUSED):
                await zombie.store.flush()
            write_behind(world)
            await zombie.ended.wait()
            await drain(world, owner)
            assert await read_all(owner.store, "s") == b"0" + acked
            await owner.store.append("s", b"tail")  # is flushed by its successor
            zombie = owner
        await zombie.stop()


@pytest.mark.parametrize("verb", ["truncate", "seal", "append"])
async def test_a_change_that_a_zombie_tried_counts_when_its_successor_makes_it(verb: str) -> None:
    """The same change, byte for byte, is refused of the one and applied for the other."""
    world = ContainerWorld(UNMERGED)
    await first_owner(world)
    calls: dict[str, Callable[[Owner], Awaitable[object]]] = {
        "truncate": lambda owner: owner.store.truncate_segment("s", 2),
        "seal": lambda owner: owner.store.seal_segment("s"),
        "append": lambda owner: owner.store.append("s", b"x", writer_id="w", event_number=7),
    }
    async with anyio.create_task_group() as tasks:
        zombie = await world.start(tasks)
        await make(zombie.store, "s", b"abc", flushed=True)
        owner = await world.start(tasks)
        with pytest.raises(REFUSED):
            await calls[verb](zombie)
        await calls[verb](owner)
        await zombie.ended.wait()
        await drain(world, owner)
        await owner.crash()
        async with world.owner() as owner:
            info = await owner.store.segment_info("s")
            assert (info.start_offset, info.sealed, info.length) == (
                2 * (verb == "truncate"),
                verb == "seal",
                3 + (verb == "append"),
            )
            await drain(world, owner)


# --- truncations --------------------------------------------------------------------------------


def chunk_lengths(owner: Owner, sid: int) -> list[int]:
    """The lengths of a segment's chunks, in order."""
    records = records_of(owner.container)
    entry = records.get(segment_key(sid))
    lengths, name = [], SegmentRecord.decode(entry[1]).first_chunk if entry else ""
    while name:
        chunk = ChunkRecord.decode(records[f"c:{name}"][1])
        lengths.append(chunk.length)
        name = chunk.next_chunk
    return lengths


@pytest.mark.parametrize(
    ("sizes", "cuts"),
    [
        ((1,), [*product(range(2), repeat=2)]),
        ((1, 2, 3), [*product(range(7), repeat=2)]),
        pytest.param(
            (10, 20, 30),
            [*zip(range(61), reversed(range(61)), strict=True), (10, 30), (30, 60), (60, 60)],
            marks=pytest.mark.extended,
        ),
    ],
    ids=["one", "three", "larger"],
)
@pytest.mark.parametrize(
    "checkpoints", [False, pytest.param(True, marks=pytest.mark.extended)], ids=["", "checkpoints"]
)
async def test_truncations_at_any_offset_leave_the_chunks_behind_them(
    sizes: Sequence[int], cuts: Sequence[tuple[int, int]], checkpoints: bool
) -> None:
    """Inside each chunk, between two, of everything, twice, and with a takeover before each step."""
    world = ContainerWorld(UNMERGED)
    world.chunks = FaultyChunkStorage(MemoryChunkStorage(world.memory, append=False))
    names = {f"s/{first}/{second}": (first, second) for first, second in cuts}
    content = bytes(range(sum(sizes)))
    await first_owner(world, *names)
    starts, position = dict.fromkeys(names, 0), 0
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)

        async def next_owner() -> None:
            nonlocal owner
            await drain(world, owner)
            if checkpoints:
                await owner.checkpoint()
            await owner.crash()
            owner = await world.start(tasks)

        for size in sizes:
            for name in names:
                await owner.store.append(name, content[position : position + size])
            position += size
            await next_owner()
        for step in range(2):
            for name, pair in names.items():
                starts[name] = max(starts[name], pair[step])
                await owner.store.truncate_segment(name, pair[step])
            await next_owner()
            for name, start in starts.items():
                info = await owner.store.segment_info(name)
                assert (info.start_offset, info.length) == (start, len(content))
                assert await read_all(owner.store, name, start) == content[start:]
                assert info.segment_id is not None
                ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
                kept = [size for size, end in zip(sizes, ends, strict=True) if end > start]
                assert chunk_lengths(owner, info.segment_id) == kept, name
        for name, start in starts.items():
            await owner.store.append(name, b"more")
            assert await read_all(owner.store, name, start) == content[start:] + b"more"
        await next_owner()
        await owner.stop()


# --- what fails, comes late, or comes twice -----------------------------------------------------


kinds = pytest.mark.parametrize(
    "kind",
    [
        FaultKind.BEFORE,
        FaultKind.AFTER,
        pytest.param(FaultKind.LOST, marks=pytest.mark.extended),
        pytest.param(FaultKind.FULL, marks=pytest.mark.extended),
    ],
)


def fails(kind: FaultKind, part: str, verb: str = "create_with_content") -> Callable[[Call], Fault | None]:
    return lambda call: Fault(kind) if call.verb == verb and part in call.name else None


@pytest.mark.parametrize(
    "options", [MERGED, pytest.param(UNMERGED, marks=pytest.mark.extended)], ids=["merged", "unmerged"]
)
@kinds
@pytest.mark.parametrize("part", ["/journal/", "/runs/"])
async def test_a_takeover_after_publications_that_failed_misses_nothing(
    part: str, kind: FaultKind, options: ContainerOptions
) -> None:
    """J3, M10: what a failed attempt left is retried or collected, and never what a later one needs. The
    collector runs after each attempt."""
    world = ContainerWorld(options)
    await first_owner(world)
    names: list[str] = []
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for failed in range(1, 4):
            for attempt in range(failed + 1):
                world.chunks.script = fails(kind, part) if attempt < failed else None
                names.append(f"s/{failed}/{attempt}")
                await make(owner.store, names[-1], names[-1].encode())
                with suppress(TierlogError):
                    await owner.store.flush()
                await anyio.sleep(5)
            await drain(world, owner, pause=RETRIES)
            world.chunks.script = fails(kind, part)
            names.append(f"s/{failed}/last")
            await make(owner.store, names[-1], names[-1].encode())
            with suppress(TierlogError):
                await owner.store.flush()
            await owner.crash()
            world.chunks.script = None
            owner = await world.start(tasks)
            await drain(world, owner)
            for name in names:
                assert await read_all(owner.store, name) == name.encode()
        await owner.stop()


async def test_publications_that_fail_leave_no_rows_behind() -> None:
    """M5: none of them keeps a view of the table open."""
    world = ContainerWorld(UNMERGED)
    await first_owner(world, "s")
    async with world.owner() as owner:
        for part in ("/runs/", "/journal/"):
            for _ in range(5):
                await owner.store.append("s", b"x")
                world.chunks.script = fails(FaultKind.BEFORE, part)
                with pytest.raises(Unavailable):
                    await owner.store.flush()
            world.chunks.script = None
            await drain(world, owner)
            await anyio.sleep(1)
            table = owner.container.statistics().table
            assert (table.rows, table.row_bytes) == (0, 0)


@attrs.define(eq=False)
class Creations:
    """The objects below ``_system/`` that were created, whether they still are there or not."""

    world: ContainerWorld
    contents: dict[str, bytes] = attrs.field(factory=dict)

    def note(self) -> None:
        for name, chunk in self.world.memory.chunks.items():
            if name.startswith((journal_prefix(0), RUNS)):
                self.contents[name] = bytes(chunk.data)

    def let_all_come_again(self) -> list[str]:
        """Each that has been deleted is created once more: a request that was on its way for long."""
        late = [name for name in self.contents if name not in self.world.memory.chunks]
        for name in late:
            self.world.memory.chunks[name] = MemoryChunk(bytearray(self.contents[name]))
        return late


@merged
async def test_every_creation_that_comes_again_late_changes_nothing(options: ContainerOptions) -> None:
    """J5, J8, G5: elements and runs of dead owners are below the head, or are named by nothing. The owner
    that finds them deletes them."""
    world = ContainerWorld(options)
    await first_owner(world, "s")
    creations, length = Creations(world), 0
    async with anyio.create_task_group() as tasks:
        for number in range(6):
            owner = await world.start(tasks)
            for _ in range(3):
                await owner.store.append("s", b"%d" % number)
                length += 1
                await owner.store.flush()
                creations.note()
            await drain(world, owner)
            creations.note()
            await owner.crash()
            owner = await world.start(tasks)
            head = owner.container.state.manifest.highest_cycle
            late = creations.let_all_come_again()
            assert len(late) > 3
            await owner.store.append("s", b"%d" % number)
            length += 1
            await owner.store.flush()
            assert owner.container.state.manifest.highest_cycle == head + 1
            await anyio.sleep(LATE_LISTING)
            await drain(world, owner)
            assert (await owner.store.segment_info("s")).length == length
            await owner.crash()
    report = await read_chain(world.chunks, 0)
    assert report.problems == ()


PRIMES = (5, 7, 11, 13, 17, 19, 23)
FREQUENT = ((2,), (3,), (2, 3))
"""Each attempt of a flush may fail at the same call."""
CHANGES = ("create", "create_with_content", "write", "concat", "delete")


PAIRS = tuple(combinations(PRIMES, 2))


def every_kth(ks: Sequence[int], kind: FaultKind, prefix: str) -> Callable[[Call], Fault | None]:
    """With two numbers, calls fail in the other way at multiples of the second one."""
    seen = 0
    kinds = kind, FaultKind.BEFORE if kind is FaultKind.AFTER else FaultKind.AFTER

    def script(call: Call) -> Fault | None:
        nonlocal seen
        if not call.name.startswith(prefix):
            return None
        seen += 1
        for k, failure in zip(ks, kinds, strict=False):
            if seen % k == 0:
                return Fault(failure if call.verb in CHANGES else FaultKind.BEFORE)
        return None

    return script


async def flush_at_last(world: ContainerWorld, owner: Owner) -> bool:
    """Whether it succeeds: some attempts fail, each at another call."""
    for _ in range(20):
        with suppress(TierlogError):
            await owner.store.flush()
            return True
        await anyio.sleep(2)
        with suppress(TierlogError):
            await world.chunks.exists(STORE_RECORD)
    return False


@kinds
@pytest.mark.parametrize(
    "ks",
    [
        ks if ks in ((5,), (13,), (11, 17)) else pytest.param(ks, marks=pytest.mark.extended)
        for ks in (*FREQUENT, *((k,) for k in PRIMES), *PAIRS)
    ],
    ids=lambda ks: "-".join(map(str, ks)),
)
@pytest.mark.parametrize("prefix", ["_system/", ""], ids=["system", "all"])
async def test_a_fault_at_every_kth_call_of_storage_changes_no_answer(
    ks: tuple[int, ...], kind: FaultKind, prefix: str
) -> None:
    """Changes go on, owners follow each other, and the collector runs, all with the same faults."""
    world = ContainerWorld(replace(QUICK, merge_fan_out=3))
    await first_owner(world)
    contents: dict[str, tuple[int, bytes]] = {}
    async with anyio.create_task_group() as tasks:
        for life in range(4):
            world.chunks.script = every_kth(ks, kind, prefix)
            owner = await world.start(tasks)
            for step in range(4):
                name = f"s/{life}/{step}"
                await make(owner.store, name, name.encode() * 3)
                contents[name] = 0, name.encode() * 3
                if step == 1:
                    first = f"s/{life}/0"
                    await owner.store.truncate_segment(first, 7)
                    contents[first] = 7, contents[first][1]
                if step == 2:
                    await owner.store.seal_segment(f"s/{life}/1")
                    await owner.store.merge_segments(name, [f"s/{life}/1"])
                    contents[name] = 0, contents[name][1] + contents.pop(f"s/{life}/1")[1]
                if step == 3 and life:
                    await owner.store.delete_segment(f"s/{life - 1}/0")
                    del contents[f"s/{life - 1}/0"]
                assert await flush_at_last(world, owner) or ks in FREQUENT
                await anyio.sleep(5)
            if life % 2:
                await owner.crash()
            else:
                await owner.stop()
        world.chunks.script = None
        async with world.owner() as owner:
            await anyio.sleep(LATE_LISTING)
            await drain(world, owner)
            assert await owner.store.list_segments("s/") == sorted(contents)
            for name, (start, content) in contents.items():
                assert await read_all(owner.store, name, start) == content[start:]


# --- what is in long-term storage at each moment --------------------------------------------------


@attrs.define(eq=False)
class Moments:
    """What long-term storage has each time that an element is created."""

    world: ContainerWorld
    contents: list[dict[str, bytes]] = attrs.field(factory=list)

    def note(self, call: Call) -> None:
        if call.verb == "create_with_content" and call.name.startswith(journal_prefix(0)):
            self.contents.append(
                {name: bytes(chunk.data) for name, chunk in self.world.memory.chunks.items()}
            )


def records_of_the_newest_element(contents: dict[str, bytes]) -> dict[str, tuple[int, bytes]]:
    """The records that the newest element names, from long-term storage alone."""
    newest = Element.decode(contents[max(name for name in contents if name.startswith(journal_prefix(0)))])
    rows: dict[bytes, Row] = {}
    for run in newest.runs:
        for row in rows_of_run(run, contents[run.name]):
            if row.key not in rows or rows[row.key].version < row.version:
                rows[row.key] = row
    return {key.decode(): (row.version, row.value) for key, row in rows.items() if row.value is not None}


@merged
async def test_every_element_is_of_one_moment(options: ContainerOptions) -> None:
    """pravega/pravega#6184: while many segments are appended to, truncated, merged and flushed at once, the
    runs of each element have whole segments, whose chunks exist and are as long as their records say."""
    world = ContainerWorld(options)
    await first_owner(world)
    moments = Moments(world)
    world.chunks.script = moments.note
    async with world.owner() as owner:

        async def work(name: str) -> None:
            await make(owner.store, name, b"begin")
            for number in range(8):
                await owner.store.append(name, name.encode() * (1 + number))
                if number % 3 == 2:
                    await owner.store.truncate_segment(name, number)
                if number % 2:
                    await owner.store.flush()
            source = f"{name}#source"
            await make(owner.store, source, b"source", sealed=True)
            await owner.store.merge_segments(name, [source])
            await owner.store.flush()

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(work, f"s/{number}")
        await drain(world, owner)
    assert len(moments.contents) > 5
    for contents in moments.contents[1:]:
        records = records_of_the_newest_element(contents)
        sids = {int.from_bytes(value, "big") for key, (_, value) in records.items() if key.startswith("n:")}
        assert all(image_key(sid).decode() in records for sid in sids)
        for record in segment_records(records):
            chunks = list(chain(records, record))
            assert len(chunks) == record.chunk_count
            assert sum(chunk.length for _, chunk in chunks) == record.length - record.first_chunk_start
            assert all(len(contents[chunk.name]) >= chunk.length for _, chunk in chunks)


# --- storage that is lost, down or damaged ------------------------------------------------------


def lose_local_copies(world: ContainerWorld) -> None:
    for path in world.files.disk.files_below("/"):
        world.files.disk.unlink(path)


async def test_a_run_that_is_lost_everywhere_is_named_and_no_segment_comes_up_empty() -> None:
    """M3: what it had is unknown, and is never taken for absent."""
    world = ContainerWorld(replace(UNMERGED, active_segments_max=1))
    await first_owner(world)
    names = [f"s/{number}" for number in range(6)]
    async with world.owner() as owner:
        for name in names:
            await make(owner.store, name, name.encode())
        for _ in range(2):
            await drain(world, owner)
        lost = {
            run.name: world.memory.chunks.pop(run.name)
            for run in owner.container.state.table.runs
            if run.summary.last_key > b"n:s/"
        }
        run_names = list(lost)
    lose_local_copies(world)
    world.options.table_cache.clear()
    chunks = world.chunk_names
    async with world.owner() as owner:
        unknown = [name for name in names if owner.container.segments.in_memory(name) is None]
        assert unknown
        for name in unknown:
            for call in (owner.store.segment_info(name), owner.store.append(name, b"x")):
                with pytest.raises(Unavailable) as error:
                    await call
                assert any(run in str(error.value) for run in run_names)
        with pytest.raises(Unavailable):
            await owner.store.list_segments()
        await anyio.sleep(LATE_LISTING)
        assert world.chunk_names >= chunks
        world.memory.chunks.update(lost)
        for name in names:
            assert await read_all(owner.store, name) == name.encode()
        await drain(world, owner)


def stray_byte(data: bytearray) -> None:
    data += b"!"


def zero_tail(data: bytearray) -> None:
    data[-64:] = bytes(64)


def zeros(data: bytearray) -> None:
    data[:] = bytes(len(data))


def half(data: bytearray) -> None:
    del data[len(data) // 2 :]


def nothing(data: bytearray) -> None:
    data.clear()


@pytest.mark.parametrize("damage", [stray_byte, zero_tail, zeros, half, nothing])
async def test_a_newest_element_that_is_not_what_was_put_is_reported_with_its_name(
    damage: Callable[[bytearray], None],
) -> None:
    """J11: reads and appends go on, nothing is written or deleted beside it, and once it is repaired the same
    owner goes on."""
    world = ContainerWorld(UNMERGED)
    await first_owner(world, "s")
    async with world.owner() as owner:
        await owner.store.append("s", b"Hello")
        await drain(world, owner)
    newest = max(name for name in world.memory.chunks if name.startswith(journal_prefix(0)))
    whole = bytes(world.memory.chunks[newest].data)
    damage(world.memory.chunks[newest].data)
    names = set(world.memory.chunks)
    async with world.owner() as owner:
        await owner.store.append("s", b" World")
        with pytest.raises(DataCorruption) as refused:
            await owner.store.flush()
        assert refused.value.file == newest
        await anyio.sleep(LATE_LISTING)
        assert set(world.memory.chunks) == names
        assert await read_all(owner.store, "s") == b"Hello World"
        assert (await read_chain(world.chunks, 0)).newest is not None, "the element before it"
        world.memory.chunks[newest] = MemoryChunk(bytearray(whole))
        await drain(world, owner)


@pytest.mark.parametrize("damage", [zero_tail, zeros, half])
async def test_a_run_that_is_damaged_everywhere_is_reported_with_its_name(
    damage: Callable[[bytearray], None],
) -> None:
    world = ContainerWorld(replace(UNMERGED, active_segments_max=1))
    await first_owner(world, *(f"s/{number}" for number in range(6)))
    async with world.owner() as owner:
        await drain(world, owner)
        run = next(iter(owner.container.state.table.runs))
        path = path_of(owner.container.disk.runs.path, run)
    whole = bytes(world.memory.chunks[run.name].data)
    damage(world.memory.chunks[run.name].data)
    world.files.disk.unlink(path)
    world.files.disk.put(path, bytes(world.memory.chunks[run.name].data))
    world.options.table_cache.clear()
    async with world.owner() as owner:
        with pytest.raises(DataCorruption) as refused:
            await owner.store.list_segments()
        assert refused.value.file == run.name
        world.memory.chunks[run.name] = MemoryChunk(bytearray(whole))
        lose_local_copies(world)
        for number in range(6):
            assert (await owner.store.segment_info(f"s/{number}")).length == 0
        await drain(world, owner)


@pytest.mark.parametrize("cycles", [50, pytest.param(1_000, marks=pytest.mark.extended)])
async def test_storage_that_is_down_at_the_opening_after_many_cycles(cycles: int) -> None:
    """J8, J11, M6: if no element could be deleted, an opening reads few objects. While storage is down it
    reads none: names, images and records are in local copies."""
    world = ContainerWorld(replace(UNMERGED if cycles < 100 else QUICK, active_segments_max=1))
    await first_owner(world)
    names = [f"s/{number}" for number in range(10)]
    async with world.owner() as owner:
        world.chunks.script = fails(FaultKind.BEFORE, "/journal/", "delete")
        for number in range(cycles):
            if number < len(names):
                await make(owner.store, names[number], names[number].encode())
            await owner.store.append(TICK, b".")
            await owner.store.flush()
        await anyio.sleep(1)
    world.options.table_cache.clear()
    world.chunks.script = lambda call: Fault(FaultKind.BEFORE)
    async with world.owner() as owner:
        for name in names:
            assert (await owner.store.segment_info(name)).length == len(name)
            await owner.store.append(name, b"!")
        assert await owner.store.list_segments("s/") == names
        with pytest.raises(Unavailable):
            await owner.store.flush()
        world.chunks.script = None
        await anyio.sleep(60)
        for _ in range(2 + cycles // 30):  # J8: they are deleted little by little
            await owner.store.append(TICK, b".")
            await owner.store.flush()
        await drain(world, owner)
    del world.chunks.calls[:]
    async with world.owner() as owner:
        assert len([call for call in world.chunks.calls if call.verb in ("read", "list")]) < 12
        for name in names:
            assert await read_all(owner.store, name) == name.encode() + b"!"


@pytest.mark.parametrize("reboots", [30, pytest.param(100, marks=pytest.mark.extended)])
async def test_reboots_in_a_row_lose_nothing_and_leave_nothing(reboots: int) -> None:
    """Each ends at another moment of its opening or of its first flush."""
    world = ContainerWorld(MERGED)
    await first_owner(world, "s")
    acked = 0
    async with anyio.create_task_group() as tasks:
        for reboot in range(reboots):
            owner = await world.start(tasks)
            await owner.store.append("s", b"x")
            acked += 1
            if reboot % 3:
                tasks.start_soon(_flush_if_it_can, owner)
            for _ in range(reboot * 7 % 90):
                await anyio.lowlevel.checkpoint()
            await owner.crash()
        async with world.owner() as owner:
            assert (await owner.store.segment_info("s")).length == acked
            await anyio.sleep(LATE_LISTING)
            await drain(world, owner)


async def _flush_if_it_can(owner: Owner) -> None:
    with suppress(TierlogError):
        await owner.store.flush()
