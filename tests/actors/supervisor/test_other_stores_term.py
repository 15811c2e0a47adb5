"""The term of another store where a supervisor's own should be (V1): it was copied there, or that store was
made in the place of this one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from msgspec.structs import replace

from support.memory_objects import Bucket, MemoryObjects
from support.s3 import numbered_world
from tierlog.actors.folder.identity import StoreIdentity, encode
from tierlog.actors.supervisor.control.record import ControlRecord, encode_control
from tierlog.actors.supervisor.join_listener import find_predecessor
from tierlog.actors.supervisor.term import Term, TermOptions, claim_term, confirm_identity, nobody_serves
from tierlog.journal.coordination.contract import CONTROL, IDENTITY, TERM
from tierlog.journal.coordination.objects import ObjectCoordination
from tierlog.journal.registers.local import REGISTER_BYTES, encode_epoch
from tierlog.storage_backends.base.errors import StoreMismatch
from tierlog.storage_backends.base.object_store import StoredObject

pytestmark = pytest.mark.anyio

WORLD = numbered_world()
STORE = StoreIdentity(b"s" * 16, b"l" * 16, 2, 0)
OTHER = StoreIdentity(b"t" * 16, b"m" * 16, 2, 0)
OTHER_TERM = encode_epoch(OTHER.log_id, 40).ljust(REGISTER_BYTES, b"\0")


@asynccontextmanager
async def supervised(objects: MemoryObjects) -> AsyncIterator[Term]:
    """As ``tierlog supervise`` has its term."""
    coordination = ObjectCoordination(objects, "", WORLD)
    options = TermOptions.watched(0.4, takes_over=False)
    confirm = partial(confirm_identity, coordination, STORE)
    find = partial(find_predecessor, coordination, STORE.store_id.hex())
    async with claim_term(coordination, STORE, WORLD.id_bytes(), options, find, confirm) as term:
        yield term


def put(bucket: Bucket, name: str, data: bytes) -> None:
    bucket.objects.pop(name, None)
    bucket.put(name, data, "")


async def test_v1_a_copied_term_counts_as_a_damaged_one(caplog: pytest.LogCaptureFixture) -> None:
    bucket = Bucket()
    put(bucket, IDENTITY, encode(STORE))
    put(bucket, TERM, OTHER_TERM)
    put(bucket, CONTROL, encode_control(ControlRecord(7, bytes(32), "10.0.0.9", 1, "m", (), STORE.store_id)))
    async with supervised(MemoryObjects(bucket)) as term:
        assert term.number == 8, "above that of its own store's last supervisor"
        put(bucket, TERM, OTHER_TERM)
        await term.check()
        assert bucket.objects[TERM][0] != OTHER_TERM, "it has put its own again"
        assert "memory:term belongs to log 6d6d" in caplog.text
        caplog.clear()
        await term.check()
        assert "term_lost" not in caplog.text


async def test_v1_nor_does_a_copied_term_refuse_who_moves_the_store() -> None:
    bucket = Bucket()
    put(bucket, IDENTITY, encode(STORE))
    put(bucket, TERM, OTHER_TERM)
    coordination = ObjectCoordination(MemoryObjects(bucket), "", WORLD)
    async with nobody_serves(coordination, STORE, WORLD.id_bytes(), 0.4):
        assert bucket.objects[TERM][0] != OTHER_TERM


async def test_v1_the_term_of_the_store_that_was_made_in_its_place_ends_a_supervisor() -> None:
    bucket = Bucket()
    put(bucket, IDENTITY, encode(STORE))
    with pytest.raises(StoreMismatch, match="another store now since this process was started"):
        async with supervised(MemoryObjects(bucket)) as term:
            put(bucket, IDENTITY, encode(OTHER))
            put(bucket, TERM, OTHER_TERM)
            await term.check()
    assert bucket.objects[TERM][0] == OTHER_TERM


@pytest.mark.parametrize("changes", [{"store_id": OTHER.store_id}, {"log_id": OTHER.log_id}], ids=repr)
async def test_v1_a_start_leaves_the_term_of_the_store_alone_that_is_made_meanwhile(
    changes: dict[str, bytes],
) -> None:
    bucket = Bucket()
    put(bucket, IDENTITY, encode(STORE))

    class Replaced(MemoryObjects):
        """Between the look at the identity and the one at the term."""

        async def get(self, key: str, size: int) -> StoredObject | None:
            if key == TERM:
                put(bucket, IDENTITY, encode(replace(STORE, **changes)))
                put(bucket, TERM, OTHER_TERM)
            return await super().get(key, size)

    with pytest.raises(StoreMismatch, match="another store now since this process was started"):
        async with supervised(Replaced(bucket)):
            raise AssertionError("it supervises nothing")
    assert bucket.objects[TERM][0] == OTHER_TERM
