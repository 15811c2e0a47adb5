"""Attributes of any number, as rows of the system table (rule M19)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from simulation.records import broken_records

from support.container_world import OPTIONS, ContainerWorld, Owner, virtual_time
from support.live_segments import cold_images
from support.stores import make
from support.table_rows import records_of
from tierlog import AttributeUpdate, AttributeUpdateKind
from tierlog.actors.container import row_removal
from tierlog.actors.container.attribute_rows import name_of_key
from tierlog.actors.container.cold_segments import ColdSegments
from tierlog.actors.container.operations.cold import UnloadRequest
from tierlog.actors.container.row_removal import RowRemoval
from tierlog.journal.operations.segment_image import decode_image, encode_image
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import AttributeConflict, Unavailable
from tierlog.storage_backends.base.segments import AttributeName
from tierlog.storage_backends.sorted_runs.scan import PageLimits

pytestmark = [pytest.mark.anyio, virtual_time]

KIND = AttributeUpdateKind
FEW = replace(OPTIONS, image_entries=4)
COLD = replace(FEW, active_segments_max=1)
NAME, OTHER = "app/events", "app/other"
IDS = {number.to_bytes(16, "big"): number for number in range(10)}
NAMES = {f"n{number}": number for number in range(20)}


def sets(values: dict[Any, int], kind: KIND = KIND.REPLACE) -> list[AttributeUpdate]:
    return [AttributeUpdate(name, value, kind) for name, value in values.items()]


async def listed(owner: Owner, prefix: AttributeName = "", limit: int = 3) -> dict[AttributeName, int]:
    """All attributes of ``NAME``, in pages."""
    found: dict[AttributeName, int] = {}
    after: AttributeName | None = None
    while True:
        page = await owner.store.list_attributes(NAME, prefix, after=after, limit=limit)
        assert len(page.attributes) == limit or page.after is None
        assert not found.keys() & page.attributes.keys()
        found |= page.attributes
        if (after := page.after) is None:
            assert list(found) == sorted(found)
            return found


def rows_of(owner: Owner, prefixes: Sequence[str] = ("a:", "v:")) -> list[str]:
    return [key for key in records_of(owner.container) if key.startswith(tuple(prefixes))]


async def go_cold(owner: Owner) -> None:
    await owner.store.flush()
    await anyio.sleep(1)
    await owner.store.append(OTHER, b"x")  # a group, after which idle segments are looked for
    await anyio.sleep(1)
    assert cold_images(owner.container)


async def filled(owner: Owner) -> None:
    await make(owner.store, OTHER)
    await make(owner.store, NAME, b"bytes")
    for some in (dict(list(NAMES.items())[:7]), dict(list(NAMES.items())[7:])):
        assert await owner.store.update_attributes(NAME, sets(some)) == some
    await owner.store.update_attributes(NAME, sets(IDS))


async def check(owner: Owner) -> None:
    """All of ``filled`` is there."""
    assert await listed(owner) == NAMES
    assert await listed(owner, "n1", limit=2) == {k: v for k, v in NAMES.items() if k.startswith("n1")}
    assert await listed(owner, b"") == IDS
    assert await listed(owner, bytes(15) + b"\x07") == {bytes(15) + b"\x07": 7}
    assert await listed(owner, "x") == {}
    info = await owner.store.segment_info(NAME)
    assert (info.attributes, info.more_attributes) == ({f"n{number}": number for number in range(4)}, True)


async def test_m19_all_attributes_are_listed_in_pages_wherever_they_are() -> None:
    world = ContainerWorld(COLD)
    async with world.owner() as owner:
        await filled(owner)
        await check(owner)
        await owner.store.flush()
        await check(owner)
        await go_cold(owner)
        await check(owner)
        assert cold_images(owner.container), "a listing loads nothing"
        await owner.store.update_attributes(NAME, sets({"n19": 19, "n0": 0}))
        await check(owner)
        assert not list(broken_records(owner.container))
    async with world.owner() as owner:
        await check(owner)


@pytest.mark.parametrize("flushed", [True, False])
async def test_m19_attributes_survive_crashes_and_checkpoints(flushed: bool) -> None:
    world = ContainerWorld(FEW)
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await filled(owner)
        if flushed:
            await owner.store.flush()
        await owner.crash()
        owner = await world.start(tasks)
        await check(owner)
        await owner.checkpoint()
        await owner.store.update_attributes(NAME, sets({"n19": 19, bytes(16): 0}))
        await owner.crash()
        owner = await world.start(tasks)
        await check(owner)
        await owner.crash()


async def test_m19_later_checkpoints_know_of_rows_although_all_segments_are_cold() -> None:
    """Their mark refuses code that would ignore the rows."""
    world = ContainerWorld()
    for _ in range(3):
        async with world.owner() as owner:
            if not await owner.store.list_segments():
                await make(owner.store, "s")
                await owner.store.update_attributes("s", [AttributeUpdate(bytes(16), 1)])
                await owner.store.flush()
                await owner.container.ask_internal(UnloadRequest(list(owner.container.segments.ids())), 8)
            assert not owner.container.segments.count
            assert owner.container.state.has_spilled
            await owner.checkpoint()
            await owner.crash()


async def test_m19_conditions_are_decided_by_rows_that_were_looked_up() -> None:
    world = ContainerWorld(COLD)
    async with world.owner() as owner:
        store = owner.store
        await filled(owner)
        await store.flush()
        owner.container.options.table_cache.clear()
        for name, value in (("n11", 11), (bytes(15) + b"\x05", 5)):
            for update in (
                AttributeUpdate(name, value, KIND.NONE),
                AttributeUpdate(name, value, KIND.REPLACE_IF_GREATER),
                AttributeUpdate(name, 1, KIND.REPLACE_IF_EQUALS, expected=value + 1),
                AttributeUpdate(name, (1 << 63) - 1, KIND.ACCUMULATE),
            ):
                owner.container.options.table_cache.clear()
                with pytest.raises(AttributeConflict):
                    # All or nothing: the first one would apply.
                    await store.update_attributes(NAME, [AttributeUpdate("n12", 7), update])
            await go_cold(owner)
            owner.container.options.table_cache.clear()
            equals = AttributeUpdate(name, value + 100, KIND.REPLACE_IF_EQUALS, expected=value)
            more = AttributeUpdate(name, 1, KIND.ACCUMULATE)
            assert await store.update_attributes(NAME, [equals, more]) == {name: value + 101}
            assert await store.update_attributes(NAME, sets({name: value})) == {name: value}
        await store.update_attributes(NAME, [AttributeUpdate("n30", 3, KIND.NONE)])
        with pytest.raises(AttributeConflict):
            await store.update_attributes(NAME, [AttributeUpdate("n30", 3, KIND.NONE)])


async def test_m19_updates_that_wait_for_a_lookup_see_those_before_them() -> None:
    """They add to a row that none of them finds in memory at first, and a cycle releases rows meanwhile."""
    async with ContainerWorld(FEW).owner() as owner:
        await filled(owner)
        await owner.store.flush()
        owner.container.options.table_cache.clear()
        values: list[int] = []

        async def add() -> None:
            updates = [AttributeUpdate("n15", 1, KIND.ACCUMULATE)]
            values.extend((await owner.store.update_attributes(NAME, updates)).values())

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(add)
            tasks.start_soon(owner.store.flush)
        assert sorted(values) == list(range(16, 36))


async def test_m19_a_lookup_that_fails_refuses_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ContainerWorld(FEW).owner() as owner:
        await filled(owner)
        await owner.store.flush()
        owner.container.options.table_cache.clear()
        look_up = ColdSegments.look_up

        async def fail(*arguments: Any) -> Any:
            raise Unavailable("the run cannot be read")

        monkeypatch.setattr(ColdSegments, "look_up", fail)
        with pytest.raises(Unavailable):
            await owner.store.update_attributes(NAME, [AttributeUpdate("n15", 1, KIND.ACCUMULATE)])
        monkeypatch.setattr(ColdSegments, "look_up", look_up)
        update = AttributeUpdate("n15", 1, KIND.ACCUMULATE)
        assert await owner.store.update_attributes(NAME, [update]) == {"n15": 16}


async def test_m19_merges_set_attributes_that_are_rows() -> None:
    async with ContainerWorld(FEW).owner() as owner:
        await filled(owner)
        await make(owner.store, f"{NAME}#1", b"more", sealed=True)
        await owner.store.update_attributes(f"{NAME}#1", sets(IDS))
        updates = [AttributeUpdate("n15", 1, KIND.ACCUMULATE), AttributeUpdate(bytes(16), 9)]
        await owner.store.merge_segments(NAME, [f"{NAME}#1"], attribute_updates=updates)
        assert (await listed(owner))["n15"] == 16
        assert (await listed(owner, b""))[bytes(16)] == 9
        await owner.store.flush()
        assert len(rows_of(owner)) == len(NAMES) - 4 + len(IDS), "none of the source is left"


async def test_m19_a_sealed_segment_keeps_taking_attributes_wherever_they_are() -> None:
    world = ContainerWorld(COLD)
    async with world.owner() as owner:
        await filled(owner)
        await owner.store.seal_segment(NAME)
        await go_cold(owner)
        more = sets({"n19": 1, "n20": 20, bytes(16): 5}, KIND.ACCUMULATE)
        assert await owner.store.update_attributes(NAME, more) == {"n19": 20, "n20": 20, bytes(16): 5}
        await go_cold(owner)
        await owner.crash()
    async with world.owner() as owner:
        assert await listed(owner) == NAMES | {"n19": 20, "n20": 20}
        assert await listed(owner, b"") == IDS | {bytes(16): 5}
        assert (await owner.store.segment_info(NAME)).sealed


async def removed(owner: Owner) -> None:
    """The background has nothing left to do."""
    with anyio.fail_after(60):
        while rows_of(owner):
            await anyio.sleep(0.1)


async def test_m19_nothing_is_left_of_the_attributes_of_a_deleted_segment() -> None:
    world = ContainerWorld(FEW)
    async with world.owner() as owner:
        await filled(owner)
        await owner.store.flush()
        await owner.store.delete_segment(NAME)
        await make(owner.store, NAME)
        assert await listed(owner) == await listed(owner, b"") == {}
        await owner.store.flush()
        await removed(owner)
        assert await listed(owner) == {}


async def test_m19_a_removal_goes_on_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_removal, "_LIMITS", PageLimits(2))
    world = ContainerWorld(FEW)
    removals = 0
    forget = RowRemoval._forget

    async def stop_after_three(removal: RowRemoval, keys: list[bytes]) -> None:
        nonlocal removals
        removals += 1
        if removals > 3:
            await anyio.sleep_forever()
        await forget(removal, keys)

    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        await filled(owner)
        with monkeypatch.context() as patch:
            patch.setattr(RowRemoval, "_forget", stop_after_three)
            await owner.store.delete_segment(NAME)
            await anyio.sleep(1)
            assert removals == 4
            assert len(rows_of(owner)) == len(NAMES) - 4 + len(IDS) - 6 + 1
            await owner.crash()
        owner = await world.start(tasks)
        await removed(owner)
        await owner.crash()


async def test_m19_a_removal_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    page = RowRemoval._page
    failures = 2

    async def fail(removal: RowRemoval, *arguments: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise Unavailable("the run cannot be read")
        return await page(removal, *arguments)

    monkeypatch.setattr(RowRemoval, "_page", fail)
    async with ContainerWorld(FEW).owner() as owner:
        await filled(owner)
        await owner.store.delete_segment(NAME)
        await owner.store.flush()
        with anyio.fail_after(300):
            while rows_of(owner):
                await anyio.sleep(5)
        assert not failures


async def test_m19_images_of_an_earlier_version_become_rows_and_go_cold() -> None:
    """The earlier one kept up to 16,384 attributes in the image."""
    world = ContainerWorld(replace(COLD, image_entries=16_384))
    many = {f"{number:05}": number for number in range(1500)}
    async with world.owner() as owner:
        await make(owner.store, OTHER)
        await make(owner.store, NAME, b"bytes")
        for start in range(0, 1500, 500):
            await owner.store.update_attributes(NAME, sets(dict(list(many.items())[start : start + 500])))
        await owner.checkpoint()
    world.options = COLD
    async with world.owner() as owner:
        with anyio.fail_after(60):
            while len(rows_of(owner)) < 1496:
                await anyio.sleep(0.1)
        assert await listed(owner, limit=1000) == many
        await go_cold(owner)
        assert owner.container.segments.in_memory(NAME) is None
        assert await listed(owner, limit=1000) == many
    async with world.owner() as owner:
        assert await listed(owner, limit=1000) == many


async def test_m19_an_image_says_that_there_are_rows_and_refuses_what_it_does_not_know() -> None:
    from support.operations import IMAGE

    for spilled, has_ids in ((True, False), (False, True)):
        image = IMAGE._replace(spilled=spilled, has_ids=has_ids)
        assert decode_image(encode_image(image)) == image
    data = bytearray(encode_image(IMAGE))
    data[9] |= 0x80
    with pytest.raises(DecodeError):
        decode_image(bytes(data))


@pytest.mark.parametrize("key", [b"a:0000000000000001", b"a:0000000000000001#zz", b"a:0000000000000001?x"])
async def test_a_damaged_key_of_an_attribute_is_refused(key: bytes) -> None:
    with pytest.raises(DecodeError):
        name_of_key(key)
