"""The record of a backup, ``_system/pins/<name>``: one element of each container's chain (rules P1 to P3).

It is created once, conditionally, and never changed. Each element in it stands alone, as in the chain, and
lists the pin that the record belongs to.

Layout: ``magic u32, version u8, store id 16 bytes, time u64, name text, containers u32, containers times
(length u32, CRC u32), CRC32C u32`` of everything before; then the elements, whose CRCs are those in the list.
So a container reads its own element and no others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress
from itertools import accumulate

import attrs

from ...storage_backends.base.backups import Backup, check_backup_name
from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder, NewerFormat
from ...storage_backends.base.errors import (
    BackupIncomplete,
    BackupNotFound,
    ChunkNotFound,
    DataCorruption,
    StoreMismatch,
)
from ...storage_backends.base.values import Value
from .chain import ChainProblem, StoredElement, check_container, list_elements, read_newest
from .element import (
    CONTAINERS_MAX,
    CRC_BYTES,
    ELEMENT_BYTES_MAX,
    ELEMENT_HEAD_BYTES,
    Element,
    Pin,
    check_crc,
    number_of,
    position_of,
)
from .store_record import StoreRecord, other_store, require_store_record

PINS = "_system/pins/"
"""The prefix of the names of all records of backups."""
OLD_BACKUPS = "_system/backups/"
"""The prefix of all objects of backups of the format before."""
_MAGIC = 0x544C504E  # "TLPN"
_VERSION = 1
_HEAD_BYTES_MAX = 16 << 10
"""More than the head of a record with that many containers and the longest name."""
_SHOWN_MAX = 5


def pin_record_name(backup: str) -> str:
    return f"{PINS}{backup}"


def old_manifest_name(backup: str) -> str:
    return f"{OLD_BACKUPS}{backup}/manifest"


@attrs.frozen(eq=False, repr=False)
class PinRecord(Value):
    """The head of a record: everything but the elements."""

    name: str
    store: bytes
    time_ms: int
    """When the newest of its elements was made."""
    elements: tuple[tuple[int, int], ...]
    """Length and CRC of each."""

    def encode(self) -> bytes:
        out = Encoder().u32(_MAGIC).u8(_VERSION).raw(self.store).u64(self.time_ms).text(self.name)
        out.u32(len(self.elements))
        for length, crc in self.elements:
            out.u32(length).u32(crc)
        body = out.finish()
        return body + crc32c(body).to_bytes(CRC_BYTES, "big")

    @property
    def begins(self) -> list[int]:
        """Where each element begins; then where the last one ends."""
        return list(accumulate((length for length, _ in self.elements), initial=len(self.encode())))

    @staticmethod
    def decode(data: bytes, name: str) -> PinRecord:
        """The head at the beginning of ``data``. Raises ``DecodeError``."""
        fields = Decoder(data)
        magic, version = fields.u32(), fields.u8()
        if magic != _MAGIC:
            raise DecodeError(f"no record of a backup begins with {magic:#x}")
        if version != _VERSION:
            raise NewerFormat(f"record of version {version}")
        store, time_ms, written, count = bytes(fields.raw(16)), fields.u64(), fields.text(), fields.u32()
        if not 1 <= count <= CONTAINERS_MAX:
            raise DecodeError(f"it has {count} containers")
        record = PinRecord(written, store, time_ms, tuple((fields.u32(), fields.u32()) for _ in range(count)))
        end = fields.position
        if fields.u32() != crc32c(data[:end]):
            raise DecodeError("its head does not match its checksum")
        # The CRC of a record that was copied to another name holds.
        if written != name:
            raise DecodeError(f"it is that of backup {written!r}")
        if any(not CRC_BYTES <= length <= ELEMENT_BYTES_MAX for length, _ in record.elements):
            raise DecodeError("no element has such a length")
        return record


def encode_pin_record(name: str, store: bytes, elements: Sequence[StoredElement]) -> list[bytes]:
    """The parts of the object. The same elements make the same bytes."""
    contents = [each.element.encode() for each in elements]
    head = PinRecord(
        name,
        store,
        max(each.element.time_ms for each in elements),
        tuple((len(content), position_of(content).crc) for content in contents),
    )
    return [head.encode(), *contents]


async def read_pin_record(chunks: ChunkStorage, name: str) -> PinRecord:
    """Raises ``ChunkNotFound``, ``DataCorruption`` with the object's name."""
    file = pin_record_name(name)
    data = await chunks.read(file, 0, _HEAD_BYTES_MAX)
    try:
        return PinRecord.decode(data, name)
    except DecodeError as error:
        raise DataCorruption(
            f"the record of backup {name!r} cannot be read: {error}", file=file, offset=0
        ) from error


async def read_pinned(chunks: ChunkStorage, record: PinRecord, container: int) -> StoredElement:
    """The element of one container. Raises ``ChunkNotFound``, ``DataCorruption`` with object and offset."""
    file = pin_record_name(record.name)
    if container >= len(record.elements):
        raise DataCorruption(f"it has no container {container}", file=file, offset=0)

    begin, (length, crc) = record.begins[container], record.elements[container]
    content = await chunks.read(file, begin, length)
    try:
        check_crc(content)
        position, element = position_of(content), Element.decode(content)
        if position.crc != crc or element.owner.store != record.store:
            raise DecodeError("it is another element")
        check_container(element, container)
    except DecodeError as error:
        raise DataCorruption(
            f"the element of container {container} in backup {record.name!r} cannot be read: {error}",
            file=file,
            offset=begin,
        ) from error
    return StoredElement(position, element)


async def find_lost_element(chunks: ChunkStorage, container: int, newest: int) -> ChainProblem | None:
    """A backup with an element of the container above the ``newest`` in its chain: what followed
    there is lost (rules J8, R2). Records that are damaged show nothing."""
    async with aclosing(chunks.list(PINS)) as infos:
        async for info in infos:
            name = info.name.removeprefix(PINS)
            with suppress(ChunkNotFound, DataCorruption):
                record = await read_pin_record(chunks, name)
                begin = record.begins[container] if container < len(record.elements) else 0
                # Its number first: an element may have a megabyte.
                head = await chunks.read(info.name, begin, ELEMENT_HEAD_BYTES) if begin else b""
                if not begin or number_of(head) <= newest:
                    continue
                if (lost := (await read_pinned(chunks, record, container)).n) > newest:
                    return ChainProblem(
                        info.name,
                        f"the journal of container {container} ends with element {newest}, and backup "
                        f"{name!r} has element {lost}: the newest elements are lost. Put them back; or "
                        f"restore the backup into another folder (`tierlog restore {name} --from PLACE`)",
                        begin,
                    )
    return None


def pin_of(name: str, element: StoredElement) -> Pin:
    """The pin that the element of a record was made for."""
    return Pin(name, element.element.progress.cycle)


async def require_pin_record(chunks: ChunkStorage, name: str) -> PinRecord:
    """As ``read_pin_record``; raises ``BackupNotFound``."""
    try:
        return await read_pin_record(chunks, check_backup_name(name))
    except ChunkNotFound as error:
        known = [info.name.removeprefix(PINS) async for info in chunks.list(PINS)]
        earlier = [info.name.removeprefix(OLD_BACKUPS).split("/") async for info in chunks.list(OLD_BACKUPS)]
        known += [each for each, *rest in earlier if rest == ["manifest"]]
        others = f"the latest are {', '.join(known[-_SHOWN_MAX:])}" if known else "there are none"
        raise BackupNotFound(f"there is no backup {name!r}: {others}") from error


def check_store_of(record: PinRecord, store: StoreRecord) -> None:
    """Raises ``StoreMismatch``, ``DataCorruption`` if the backup is not one of the store."""
    if record.store != store.store:
        raise other_store(record.store, store.store)
    if len(record.elements) != store.containers:
        raise DataCorruption(
            f"it has {len(record.elements)} containers, and the store {store.containers}",
            file=pin_record_name(record.name),
            offset=0,
        )


async def check_restorable(chunks: ChunkStorage, record: PinRecord, *, is_copy: bool) -> None:
    """Raises why the backup cannot be restored, as far as the record of the store and the chains show it:
    ``DataCorruption`` with the name of the object that is damaged or missing, ``StoreMismatch``,
    ``BackupIncomplete``. ``is_copy``: what it needs was copied, whether the chains keep it or not."""
    check_store_of(record, await require_store_record(chunks))
    # P3: otherwise its chunks may be deleted already.
    if not is_copy and (missing := await missing_pins(chunks, record)):
        raise BackupIncomplete(
            f"container {missing[0]} does not keep backup {record.name!r}, because it was given up while it "
            f"was made, or is being removed: remove it"
        )


async def missing_pins(chunks: ChunkStorage, record: PinRecord) -> list[int]:
    """The containers that do not keep what the backup needs, as of their newest elements: it was given up
    while it was made, or removed (rule P3). Raises ``DataCorruption``."""
    missing: list[int] = []
    for container in range(len(record.elements)):
        newest = await read_newest(chunks, container, await list_elements(chunks, container))
        pinned = await read_pinned(chunks, record, container)
        if newest is None or pin_of(record.name, pinned) not in newest.element.pins:
            missing.append(container)
    return missing


async def list_pins(chunks: ChunkStorage, *, is_copy: bool = False) -> list[Backup]:
    """The backups in long-term storage, sorted by name, damaged and incomplete ones too. ``is_copy``: as in
    ``check_restorable``."""
    found: list[Backup] = []
    for name in [info.name.removeprefix(PINS) async for info in chunks.list(PINS)]:
        time_ms, containers, problem = 0, 0, ""
        try:
            record = await read_pin_record(chunks, name)
            time_ms, containers = record.time_ms, len(record.elements)
            await check_restorable(chunks, record, is_copy=is_copy)
        except ChunkNotFound:
            continue  # removed meanwhile
        except (DataCorruption, StoreMismatch, BackupIncomplete) as error:
            problem = str(error)
        found.append(Backup(name, time_ms, containers, problem))
    return found
