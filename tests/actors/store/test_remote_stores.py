"""A store in a service, a bucket or BookKeeper: opened from any machine, fenced by the next opening, and
refused if something is not right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from support.ledger_stores import in_memory
from support.remote_stores import (
    NAME,
    PIECES,
    BucketMachine,
    LedgerMachine,
    Machine,
    fill,
    read_all,
    refused,
)
from tierlog import DataCorruption, InvalidArgument, NotOwner, OutcomeUnknown, StoreMismatch, Unavailable
from tierlog.actors.store.opening import open_host
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


@pytest.fixture(params=["bucket", "bookkeeper"])
def machines(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Machine, Machine]:
    disks = (tmp_path / "here", tmp_path / "elsewhere")
    if request.param == "bucket":
        server = request.getfixturevalue("server")
        return BucketMachine(disks[0], server), BucketMachine(disks[1], server)
    site = in_memory(tmp_path, monkeypatch)
    return LedgerMachine(disks[0], site), LedgerMachine(disks[1], site)


@pytest.fixture
def here(machines: tuple[Machine, Machine]) -> Machine:
    return machines[0]


@pytest.fixture
def elsewhere(machines: tuple[Machine, Machine]) -> Machine:
    return machines[1]


async def test_what_was_acked_is_there_on_another_machine(here: Machine, elsewhere: Machine) -> None:
    async with here.open() as store:
        await fill(store)
    async with elsewhere.open() as store:
        assert await read_all(store) == b"".join(PIECES)
        await store.append(NAME, b"and more")
        await store.flush()
        await store.append(NAME, b"!")
    async with here.open() as store:
        assert await read_all(store) == b"".join(PIECES) + b"and more!"
        assert (await store.segment_info(NAME)).flushed_length == 200_008


async def test_a_second_opening_fences_the_first(here: Machine, elsewhere: Machine) -> None:
    async with here.open() as first:
        await fill(first)
        async with elsewhere.open() as second:
            await second.append(NAME, b"second")
            with pytest.raises((NotOwner, OutcomeUnknown)):
                await first.append(NAME, b"zombie")
            with pytest.raises(NotOwner):
                await first.read(NAME, 0, 10)
            assert await read_all(second) == b"".join(PIECES) + b"second"
            await second.flush()
    async with here.open() as third:
        assert await read_all(third) == b"".join(PIECES) + b"second"


async def test_a_fenced_store_that_was_idle_answers_no_read(here: Machine, elsewhere: Machine) -> None:
    async with here.open() as first:
        await fill(first)
        async with elsewhere.open() as second:
            await second.append(NAME, b"second")
            with pytest.raises((NotOwner, Unavailable)):
                await first.segment_info(NAME)


async def test_of_two_that_create_the_store_at_once_one_wins(here: Machine, elsewhere: Machine) -> None:
    opened: list[str] = []

    async def create(machine: Machine) -> None:
        try:
            async with machine.open() as store:
                await store.create_segment(f"app/{machine.disk.name}")
                opened.append(machine.disk.name)
        except (NotOwner, OutcomeUnknown, Unavailable):
            return  # the other one has fenced it

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create, here)
        tasks.start_soon(create, elsewhere)
    async with here.open() as store:
        assert {f"app/{name}" for name in opened} <= set(await store.list_segments())
    assert opened


async def test_the_number_of_containers_is_fixed(here: Machine) -> None:
    async with here.open():
        pass
    with pytest.raises(StoreMismatch, match="was created with 1 containers, not 2"):
        await refused(here.open(containers=2))
    async with here.open(containers=None) as store:
        assert len(store.statistics().containers) == 1


async def test_a_lost_identity_is_not_made_again(here: Machine) -> None:
    async with here.open() as store:
        await fill(store)
    place = here.lose_identity()
    with pytest.raises(DataCorruption, match="identity is missing") as caught:
        await refused(here.open())
    assert caught.value.file == place


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"storage": MemoryChunkStorage()}, "no storage of yours"), ({"recover_from_lts": True}, "data folder")],
)
async def test_arguments_that_make_no_sense_are_refused(
    here: Machine, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await refused(here.open(**arguments))


async def test_a_host_names_the_place_that_has_no_store(here: Machine) -> None:
    async def join() -> None:
        async with open_host(here.place, "host-0", config=here.settings()):
            raise AssertionError("it was opened")

    with pytest.raises(InvalidArgument, match=f"there is no store at {here.place}/?, because .*/store is"):
        await join()
