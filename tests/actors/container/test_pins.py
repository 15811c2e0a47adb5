"""Backups of one container: what they keep over many owners, what is resolved after a crash, and what is
refused (rules P1 to P5)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from random import Random

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, referenced_chunks, virtual_time
from support.drained import TICK, check_storage, drain
from support.stores import make
from support.table_rows import RUNS
from tierlog.actors.container.options import ContainerOptions
from tierlog.actors.container.pins import FRESH_MAX, FRESH_SECONDS, SILENT_SECONDS
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.journal.manifest.chain import read_element
from tierlog.journal.manifest.element import PINS_MAX, Element
from tierlog.journal.manifest.pin_record import (
    encode_pin_record,
    list_pins,
    pin_record_name,
    read_pin_record,
    read_pinned,
)
from tierlog.storage_backends.base.backups import BackupStep, StepAnswer, StepKind, make_backup, take_steps
from tierlog.storage_backends.base.errors import (
    BackupExists,
    BackupIncomplete,
    BackupNotFound,
    DataCorruption,
    InvalidArgument,
    StorageFull,
    Throttled,
    TierlogError,
)
from tierlog.storage_backends.segments.records.chunk import CHUNK_PREFIX
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.reader import RunReader, StoredRuns
from tierlog.storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from tierlog.storage_backends.sorted_runs.table import Table
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]

QUICK = replace(
    OPTIONS, collector=CollectorOptions(delay=1, listings=(0, 10, 40), retry_pause=5, retry_pause_max=10)
)
MERGED = replace(QUICK, merge_fan_out=2)
merged = pytest.mark.parametrize("options", [QUICK, MERGED], ids=["unmerged", "merged"])
SETTLED = 100.0
"""Seconds after which all garbage is deleted."""


async def kept_element(world: ContainerWorld, name: str) -> Element:
    return (await read_pinned(world.chunks, await read_pin_record(world.chunks, name), 0)).element


async def kept_chunks(world: ContainerWorld, name: str) -> set[str]:
    """The chunks that the backup needs, read from long-term storage alone."""
    element = await kept_element(world, name)
    runs = RunReader(StoredRuns(world.chunks), BlockCache(1 << 20))
    prefix = CHUNK_PREFIX.encode()
    with Table(element.runs).view() as view:
        page = await scan_rows(view, runs, KeyRange(prefix, prefix + b"\xff"), PageLimits(10_000, 1 << 26))
    return {row.key.decode().removeprefix(CHUNK_PREFIX) for row in page.rows}


async def check_kept(world: ContainerWorld, owner: Owner, names: Iterable[str]) -> None:
    """Long-term storage has what the state and the backups need, and nothing else."""
    chunks, runs = referenced_chunks(owner.container), set[str]()
    for name in names:
        chunks |= await kept_chunks(world, name)
        runs |= {run.name for run in (await kept_element(world, name)).runs}
    assert world.chunk_names == chunks
    left = _unneeded_runs(world, owner, runs)
    if (
        left
    ):  # those that a merge replaced wait for the cycle after it (rule M11), in which another may be due
        await settle(owner)
        assert not left & _unneeded_runs(world, owner, runs)


def _unneeded_runs(world: ContainerWorld, owner: Owner, kept: set[str]) -> set[str]:
    stored = {name for name in world.memory.chunks if name.startswith(RUNS)}
    assert kept <= stored
    return stored - kept - set(owner.container.state.manifest.runs_among(stored))


async def settle(owner: Owner) -> None:
    """Two cycles, after which all that is garbage is deleted."""
    for _ in range(2):
        await owner.store.append(TICK, b".")
        await owner.store.flush()
        await anyio.sleep(SETTLED)


async def fill(owner: Owner, *names: str) -> None:
    for name in names:
        await make(owner.store, name, name.encode() * 100)
    await owner.store.flush()


async def first_owner(world: ContainerWorld, *names: str) -> None:
    async with world.owner() as owner:
        await owner.store.create_segment(TICK)
        await fill(owner, *names)
        await drain(world, owner)


@merged
async def test_p4_garbage_spares_what_backups_need_and_nothing_more(options: ContainerOptions) -> None:
    world = ContainerWorld(options)
    await first_owner(world, "a", "b", "c")
    async with world.owner() as owner:
        await owner.store.backup("one")
        await owner.store.delete_segment("a")
        await fill(owner, "d")
        await settle(owner)
        await check_kept(world, owner, ["one"])
        await owner.store.backup("two")
        await owner.store.delete_segment("b")
        await owner.store.delete_segment("d")
        await settle(owner)
        await check_kept(world, owner, ["one", "two"])
    async with world.owner() as owner:  # finds what it needs in the records
        await owner.store.delete_segment("c")
        await settle(owner)
        await check_kept(world, owner, ["one", "two"])
        await owner.store.remove_backup("one")
        await settle(owner)
        await check_kept(world, owner, ["two"])
    async with world.owner() as owner:
        await owner.store.remove_backup("two")
        await settle(owner)
        await drain(world, owner)
        assert owner.container.state.manifest.pins == ()


async def test_p1_a_backup_has_everything_that_was_acked_before_it() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        await owner.store.append("a", b"acked")
        await owner.store.backup("one")
        element = await kept_element(world, "one")
        assert element.progress.cut >= owner.container.state.client_sequence
        # An own element lists the pin: the record stands alone.
        assert [pin.name for pin in element.pins] == ["one"]
        assert owner.container.state.manifest.pins == element.pins
        [info] = await owner.store.backups()
        assert (info.name, info.containers, info.problem) == ("one", 1, "")


async def step(owner: Owner, kind: StepKind, token: str = "t", positions: object = ()) -> tuple[int, int]:
    made = BackupStep(0, kind, "one", token, positions)  # type: ignore[arg-type]
    return (await owner.container.pins.act(made)).position


@pytest.mark.parametrize("is_put", [False, True], ids=["without a record", "with a record"])
async def test_p3_a_pin_is_kept_after_a_crash_if_there_is_a_record(is_put: bool) -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        position = await step(owner, StepKind.PIN)
        if is_put:
            await step(owner, StepKind.PUT, positions=(position,))
        await owner.crash()
        async with world.owner() as owner:
            await owner.store.delete_segment("a")
            await settle(owner)
            await check_kept(world, owner, ["one"] if is_put else [])
            assert bool(owner.container.state.manifest.pins) is is_put
            if not is_put:
                with pytest.raises(BackupIncomplete, match="given up"):
                    await step(owner, StepKind.KEEP)
                await owner.store.backup("one")
        async with world.owner() as owner:
            await settle(owner)
            await check_kept(world, owner, ["one"])


async def test_p3_a_backup_whose_container_was_taken_over_meanwhile_fails_and_leaves_nothing() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        position = await step(owner, StepKind.PIN)
        element = await read_element(world.chunks, 0, position[0])
        successor = await world.start(tasks)
        await anyio.sleep(SETTLED)  # it drops the pin
        with pytest.raises(BackupIncomplete, match="make it again"):
            await step(successor, StepKind.PUT, positions=(position,))
        # The put of the owner before arrives late.
        parts = encode_pin_record("one", world.store_id, [element])
        await world.chunks.create_with_content(pin_record_name("one"), parts)
        with pytest.raises(BackupIncomplete, match="make it again"):
            await step(successor, StepKind.KEEP)
        # What nobody keeps is shown, and can be removed.
        [info] = await successor.store.backups()
        assert "does not keep backup" in info.problem
        await successor.store.remove_backup("one")
        assert await list_pins(world.chunks) == []
        await successor.store.backup("one")
        await successor.stop()


async def test_p3_a_call_that_is_never_finished_is_given_up_by_a_living_owner() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        await step(owner, StepKind.PIN)
        with pytest.raises(BackupExists, match="another call"):
            await owner.store.backup("one")
        await owner.store.delete_segment("a")
        await settle(owner)
        assert owner.container.statistics().pins.backups == 1
        await anyio.sleep(FRESH_SECONDS)
        assert owner.container.state.manifest.pins == ()
        await settle(owner)
        await drain(world, owner)


async def begin(owner: Owner, name: str, token: str = "gone") -> None:
    """The first step of a call."""
    await owner.container.pins.act(BackupStep(0, StepKind.PIN, name, token))


async def test_p5_calls_whose_clients_are_gone_hold_up_nobody_for_longer_than_a_minute() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        for number in range(FRESH_MAX):
            await begin(owner, f"gone-{number}")
            await anyio.sleep(0.1)
        with pytest.raises(Throttled, match="8 backups are being made at once"):
            await owner.store.backup("one")
        await anyio.sleep(SILENT_SECONDS)
        await owner.store.backup("one")
        pins = [pin.name for pin in owner.container.pins.known]
        assert (len(pins), "gone-0" in pins) == (FRESH_MAX, False)
        # Nobody needs what the others hold.
        await anyio.sleep(SILENT_SECONDS)
        assert len(owner.container.pins.known) == FRESH_MAX


async def test_p5_a_name_is_free_a_minute_after_its_client_is_gone() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        await begin(owner, "one")
        await anyio.sleep(SILENT_SECONDS - 1)
        await begin(owner, "one")  # its client is not gone
        await anyio.sleep(SILENT_SECONDS - 1)
        with pytest.raises(BackupExists, match="try again in a minute"):
            await owner.store.backup("one")
        await anyio.sleep(1)
        await owner.store.backup("one")
        [info] = await owner.store.backups()
        assert (info.name, info.problem) == ("one", "")
        with pytest.raises(BackupExists):
            await begin(owner, "one")


async def test_p5_the_last_place_is_not_held_by_a_client_that_is_gone() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world)
    async with world.owner() as owner:
        for number in range(PINS_MAX - 1):
            await owner.store.backup(f"b{number}")
        await begin(owner, "gone")
        with pytest.raises(InvalidArgument, match="room for 64"):
            await owner.store.backup("one")
        await anyio.sleep(SILENT_SECONDS)
        await owner.store.backup("one")


async def test_p3_a_call_that_is_cancelled_drops_its_pins() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        world.chunks.script = lambda call: (
            Fault(FaultKind.HANG) if call.name == pin_record_name("one") and call.verb != "exists" else None
        )
        with anyio.move_on_after(5) as cancelled:
            await owner.store.backup("one")
        assert cancelled.cancelled_caught
        world.chunks.script = None
        await settle(owner)
        assert owner.container.pins.known == ()
        await owner.store.backup("one")


async def test_p3_a_pin_is_not_dropped_because_a_mount_is_missing() -> None:
    """There is no record below the folder of a mount either."""
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        await step(owner, StepKind.PUT, positions=(await step(owner, StepKind.PIN),))
        await anyio.sleep(FRESH_SECONDS - 1)
        mounted = dict(world.memory.chunks)
        world.memory.chunks.clear()
        await anyio.sleep(100)
        assert not owner.ended.is_set()
        assert not world.memory.chunks
        world.memory.chunks.update(mounted)
        await anyio.sleep(100)
        await owner.store.delete_segment("a")
        await settle(owner)
        await check_kept(world, owner, ["one"])
        await step(owner, StepKind.KEEP)


async def test_p3_no_record_is_made_of_elements_that_do_not_list_the_pin() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        n, crc = await step(owner, StepKind.PIN)
        await step(owner, StepKind.DROP)
        head = owner.container.state.manifest.head
        assert head is not None
        assert not head.element.pins
        # Of its number, as another history has it; and one behind it.
        for position in ((n, crc ^ 1), tuple(head.position)):
            with pytest.raises(BackupIncomplete, match="make it again"):
                await step(owner, StepKind.PUT, positions=(position,))
        assert await list_pins(world.chunks) == []


async def test_p1_a_step_that_is_repeated_pins_nothing_else() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        position = await step(owner, StepKind.PIN)
        assert await step(owner, StepKind.PIN) == position
        for _ in range(2):
            await step(owner, StepKind.PUT, positions=(position,))
        for _ in range(2):
            await step(owner, StepKind.KEEP)
        # Elements between them do not take the place of the one that the record is made of.
        with pytest.raises(BackupExists, match="already a backup"):
            await step(owner, StepKind.PIN, token="other")


async def test_p3_of_two_calls_of_one_name_the_second_is_refused_and_does_the_first_no_harm() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner, anyio.create_task_group() as tasks:
        pinned, refused = anyio.Event(), anyio.Event()

        async def take(asked: BackupStep) -> StepAnswer:
            if asked.kind is StepKind.PUT:
                pinned.set()
                await refused.wait()
            return await owner.container.pins.act(asked)

        tasks.start_soon(take_steps, make_backup("one", "first", 1), take)
        await pinned.wait()
        with pytest.raises(BackupExists, match="another call is making"):
            await owner.store.backup("one")
        refused.set()
        await settle(owner)
        [backup] = await owner.store.backups()
        assert (backup.name, backup.problem) == ("one", "")


async def test_p3_a_call_that_failed_drops_only_what_it_pinned() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        position = await step(owner, StepKind.PIN)
        await step(owner, StepKind.DROP, token="other")
        await step(owner, StepKind.PUT, positions=(position,))
        await step(owner, StepKind.DROP, token="other")
        await step(owner, StepKind.KEEP)
        await owner.store.remove_backup("one")
        await step(owner, StepKind.PIN)
        await step(owner, StepKind.DROP)
        assert owner.container.state.manifest.pins == ()


async def test_p1_the_element_of_a_pin_stays_until_the_record_has_it() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        position = await step(owner, StepKind.PIN)
        for _ in range(4):
            await owner.store.append(TICK, b".")
            await owner.store.flush()
        await step(owner, StepKind.PUT, positions=(position,))
        await step(owner, StepKind.KEEP)
        await settle(owner)
        check = owner.container.state.manifest
        assert check.head is not None
        elements = [name for name in world.memory.chunks if "/journal/" in name]
        assert len(elements) <= 3


async def test_a_backup_that_exists_and_one_that_does_not_are_refused() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world)
    async with world.owner() as owner:
        await owner.store.backup("one")
        with pytest.raises(BackupExists, match="already a backup 'one'"):
            await owner.store.backup("one")
        with pytest.raises(BackupNotFound, match="no backup 'two'"):
            await owner.store.remove_backup("two")
        for name in ("", ".a", "a/b", "x" * 101):
            with pytest.raises(InvalidArgument, match="name"):
                await owner.store.backup(name)


async def test_there_is_room_for_a_number_of_backups() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world)
    async with world.owner() as owner:
        for number in range(PINS_MAX):
            await owner.store.backup(f"{number:0100d}")
        with pytest.raises(InvalidArgument, match="room for 64"):
            await owner.store.backup("more")
        await owner.store.remove_backup("0" * 100)
        await owner.store.backup("more")


async def test_p4_with_a_damaged_record_nothing_is_deleted_until_it_is_removed() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        await owner.store.backup("one")
    file = pin_record_name("one")
    world.memory.chunks[file].data[0] ^= 1
    async with world.owner() as owner:
        before = world.chunk_names
        await owner.store.delete_segment("a")
        await settle(owner)
        assert world.chunk_names >= before
        [info] = await owner.store.backups()
        assert file in info.problem
        with pytest.raises(DataCorruption, match=file):
            await owner.container.pins.among(before, ())
        await owner.store.remove_backup("one")
        await settle(owner)
        await anyio.sleep(SETTLED)
        check_storage(world, owner)


async def test_p4_while_records_cannot_be_read_nothing_is_deleted() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        await owner.store.backup("one")
    is_down = True

    def script(call: Call) -> Fault | None:
        return Fault(FaultKind.BEFORE) if is_down and call.name == pin_record_name("one") else None

    world.chunks.script = script
    async with world.owner() as owner:
        await owner.store.delete_segment("a")
        await settle(owner)
        is_down = False
        await check_kept(world, owner, ["one"])
        await settle(owner)
        await check_kept(world, owner, ["one"])


async def test_p4_what_is_dropped_while_a_pin_is_made_is_kept() -> None:
    """Its element has the runs of a flush that began before, and these name it."""
    world = ContainerWorld(replace(QUICK, collector=CollectorOptions(delay=0, listings=())))
    await first_owner(world, "a", "b")
    async with world.owner() as owner:
        await owner.store.append("b", b"more")
        is_held = False

        def script(call: Call) -> Fault | None:
            nonlocal is_held
            if is_held or "/journal/" not in call.name or call.verb != "create_with_content":
                return None
            is_held = True
            return Fault(FaultKind.DELAY, seconds=10.0)

        world.chunks.script = script
        positions: list[tuple[int, int]] = []

        async def pin() -> None:
            positions.append(await step(owner, StepKind.PIN))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pin)
            await anyio.sleep(1)
            assert is_held
            before = world.chunk_names
            await owner.store.delete_segment("a")
            owner.begin_cycle()
            await anyio.sleep(1)
            # The runs that count name them, and the pin may get these.
            assert await owner.container.pins.among(before, ()) > set()
        await step(owner, StepKind.PUT, positions=tuple(positions))
        await step(owner, StepKind.KEEP)
        await settle(owner)
        assert await kept_chunks(world, "one") <= world.chunk_names
        await check_kept(world, owner, ["one"])


@pytest.mark.parametrize("seed", range(6))
async def test_p4_a_backup_beside_deletions_and_collections_is_whole(seed: int) -> None:
    """What is deleted while a backup is made is in it and kept, or not in it."""
    random = Random(seed)
    world = ContainerWorld(replace(QUICK, collector=CollectorOptions(delay=0, listings=(0,))))
    await first_owner(world, *(f"s{number}" for number in range(40)))

    def script(call: Call) -> Fault | None:
        return Fault(FaultKind.DELAY, seconds=random.random()) if random.random() < 0.2 else None

    world.chunks.script = script
    async with world.owner() as owner:
        is_over = False

        async def work() -> None:
            number = 0
            while not is_over:
                await owner.store.delete_segment(f"s{number % 40}")
                await make(owner.store, f"s{number % 40}", b"x" * random.randint(1, 300))
                if random.random() < 0.3:
                    await owner.store.flush()
                number += 1
                await anyio.sleep(random.random() / 4)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            for number in range(6):
                await anyio.sleep(random.random() * 3)
                await owner.store.backup(f"b{number}")
                assert await kept_chunks(world, f"b{number}") <= world.chunk_names
                if number % 2:
                    await owner.store.remove_backup(f"b{number - 1}")
            is_over = True
        await settle(owner)
        await check_kept(world, owner, ["b1", "b3", "b5"])


async def test_a_store_without_room_for_rows_makes_no_backup() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")

    def script(call: Call) -> Fault | None:
        return (
            Fault(FaultKind.FULL) if call.verb.startswith("create") and call.name.startswith(RUNS) else None
        )

    async with world.owner() as owner:
        world.chunks.script = script
        await owner.store.append("a", b"more")
        with pytest.raises(StorageFull, match="nothing was done"):
            await owner.store.backup("one")
        world.chunks.script = None
        await owner.store.backup("one")


async def test_p4_what_a_backup_keeps_does_not_hold_up_other_garbage() -> None:
    """It is more than the queue has room for."""
    options = replace(QUICK, collector=replace(QUICK.collector, names_max=8))
    world = ContainerWorld(options)
    names = [f"kept{number}" for number in range(10)]
    await first_owner(world, *names)
    async with world.owner() as owner:
        await owner.store.backup("one")
        for name in names:
            await owner.store.delete_segment(name)
        await settle(owner)
        assert owner.container.statistics().collector.queued == 0
        await fill(owner, "x", "y")
        await owner.store.delete_segment("x")
        await owner.store.delete_segment("y")
        await settle(owner)
        await check_kept(world, owner, ["one"])
        await owner.store.remove_backup("one")
        await settle(owner)
        await check_kept(world, owner, ())


@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.AFTER])
@pytest.mark.parametrize("part", ["/runs/", "/journal/"])
async def test_p4_what_a_removed_backup_kept_is_deleted_although_storage_failed_then(
    part: str, kind: FaultKind
) -> None:
    """Runs that only the backup needs cannot be read, or the element without it has an unknown outcome. The
    store is idle: the same owner finds what is garbage."""
    world = ContainerWorld(replace(MERGED, table_cache=BlockCache(1)))
    async with world.owner() as owner:
        await owner.store.create_segment(TICK)
        await fill(owner, "a")
        await owner.store.backup("one")
        await owner.store.delete_segment("a")
        await owner.store.flush()
    async with world.owner() as owner:
        for number in range(4):
            await fill(owner, f"x{number}")
        await anyio.sleep(SETTLED)
        kept = await kept_chunks(world, "one")
        verb = "read" if part == "/runs/" else "create_with_content"

        def script(call: Call) -> Fault | None:
            return Fault(kind) if call.verb == verb and part in call.name else None

        world.chunks.script = script
        with suppress(TierlogError):
            await owner.store.remove_backup("one")
        await anyio.sleep(5)
        world.chunks.script = None
        await anyio.sleep(300)
        assert not await owner.store.backups()
        assert owner.container.state.manifest.pins == ()
        assert not kept & (world.chunk_names - referenced_chunks(owner.container))
        await check_kept(world, owner, ())


async def test_a_backup_that_storage_refuses_raises_its_error_and_can_be_made_again() -> None:
    world = ContainerWorld(QUICK)
    await first_owner(world, "a")
    async with world.owner() as owner:
        for verb in ("exists", "create_with_content", "read"):

            def script(call: Call, verb: str = verb) -> Fault | None:
                is_record = call.name == pin_record_name("one")
                return Fault(FaultKind.BEFORE) if is_record and call.verb == verb else None

            world.chunks.script = script
            with pytest.raises(TierlogError):
                await owner.store.backup("one")
            world.chunks.script = None
            await settle(owner)
            assert owner.container.state.manifest.pins == ()
        await owner.store.backup("one")
