"""The record of a backup (rule P1): permanent bytes, and damage that is always noticed."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from support.operations import ELEMENT_WITH_TRANSACTIONS, element_of
from tierlog.journal.manifest.chain import StoredElement
from tierlog.journal.manifest.element import Element, Kind, Pin, position_of
from tierlog.journal.manifest.pin_record import (
    PinRecord,
    encode_pin_record,
    list_pins,
    pin_of,
    pin_record_name,
    read_pin_record,
    read_pinned,
)
from tierlog.journal.manifest.store_record import STORE_RECORD, StoreRecord
from tierlog.storage_backends.base.codec import DecodeError, NewerFormat
from tierlog.storage_backends.base.errors import BackupNotFound, ChunkNotFound, DataCorruption
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage

pytestmark = pytest.mark.anyio

GOLDEN = bytes.fromhex((Path(__file__).parents[2] / "golden" / "pin_record_v1.hex").read_text())
NAME = "monday"


def pinned(number: int, like: Element) -> StoredElement:
    """What container ``number`` has in the record."""
    element = attrs.evolve(
        like,
        n=7 + number,
        kind=Kind.PINNED,
        time_ms=1_700_000_000_000 + number,
        pins=(Pin(NAME, ELEMENT_WITH_TRANSACTIONS.progress.cycle),),
    )
    return StoredElement(position_of(element.encode()), element)


ELEMENTS = [pinned(index, element_of(index, ELEMENT_WITH_TRANSACTIONS)) for index in range(2)]
STORE = ELEMENTS[0].element.owner.store
RECORD = b"".join(encode_pin_record(NAME, STORE, ELEMENTS))


async def stored(data: bytes) -> MemoryChunkStorage:
    chunks = MemoryChunkStorage()
    await chunks.open()
    await chunks.create_with_content(pin_record_name(NAME), [data])
    await chunks.create_with_content(STORE_RECORD, [StoreRecord(STORE, 2).encode()])
    return chunks


async def test_a_record_has_its_golden_bytes() -> None:
    golden = [pinned(index, ELEMENT_WITH_TRANSACTIONS) for index in range(2)]
    assert b"".join(encode_pin_record(NAME, STORE, golden)) == GOLDEN
    assert PinRecord.decode(GOLDEN, NAME).elements == tuple(
        (len(each.element.encode()), each.position.crc) for each in golden
    )


async def test_a_record_is_read_element_by_element() -> None:
    chunks = await stored(RECORD)
    record = await read_pin_record(chunks, NAME)
    assert (record.store, record.time_ms) == (STORE, 1_700_000_000_001)
    assert [await read_pinned(chunks, record, index) for index in range(2)] == ELEMENTS
    assert pin_of(NAME, ELEMENTS[0]) == ELEMENTS[0].element.pins[0]


async def test_every_byte_of_a_record_is_checked() -> None:
    """The head's when it is read, those of an element by the container that it is of."""
    head = len(PinRecord.decode(RECORD, NAME).encode())
    for at in range(len(RECORD)):
        damaged = bytearray(RECORD)
        damaged[at] ^= 1
        chunks = await stored(bytes(damaged))
        found: list[DataCorruption] = []
        try:
            record = await read_pin_record(chunks, NAME)
            for index in range(2):
                try:
                    await read_pinned(chunks, record, index)
                except DataCorruption as error:
                    found.append(error)
        except DataCorruption as error:
            found.append(error)
        [damage] = found
        assert damage.file == pin_record_name(NAME)
        assert damage.offset <= at
        assert (damage.offset == 0) == (at < head)


async def test_a_record_that_is_cut_off_is_damaged() -> None:
    for end in (0, 4, 40, len(GOLDEN) - 1):
        [backup] = await list_pins(await stored(GOLDEN[:end]), is_copy=end < 60)
        assert pin_record_name(NAME) in backup.problem


async def test_a_record_under_another_name_is_none_of_that_name() -> None:
    chunks = await stored(b"".join(encode_pin_record("tuesday", STORE, ELEMENTS)))
    with pytest.raises(DataCorruption, match="that of backup 'tuesday'"):
        await read_pin_record(chunks, NAME)


async def test_a_container_that_a_record_does_not_have_is_damage() -> None:
    chunks = await stored(GOLDEN)
    with pytest.raises(DataCorruption, match="no container 2"):
        await read_pinned(chunks, await read_pin_record(chunks, NAME), 2)


async def test_the_element_of_another_store_is_damage() -> None:
    chunks = await stored(b"".join(encode_pin_record(NAME, b"o" * 16, ELEMENTS)))
    with pytest.raises(DataCorruption, match="another element"):
        await read_pinned(chunks, await read_pin_record(chunks, NAME), 0)


async def test_the_elements_of_two_containers_are_not_exchanged() -> None:
    exchanged = await stored(b"".join(encode_pin_record(NAME, STORE, ELEMENTS[::-1])))
    with pytest.raises(DataCorruption, match="/0001/runs/.*no run of this container") as refused:
        await read_pinned(exchanged, await read_pin_record(exchanged, NAME), 0)
    assert refused.value.file == pin_record_name(NAME)


async def test_without_a_record_there_is_no_backup() -> None:
    chunks = await stored(GOLDEN)
    with pytest.raises(ChunkNotFound):
        await read_pin_record(chunks, "tuesday")
    assert issubclass(BackupNotFound, LookupError)


def test_a_newer_record_does_not_count_as_damaged() -> None:
    with pytest.raises(NewerFormat):
        PinRecord.decode(GOLDEN[:4] + b"\2" + GOLDEN[5:], NAME)
    with pytest.raises(DecodeError):
        PinRecord.decode(b"\0" + GOLDEN[1:], NAME)
