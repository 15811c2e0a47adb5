"""``_system/store``: which store the long-term storage belongs to. Created once, conditionally (rule J10).

Layout: ``magic u32, version u16, store id 16 bytes, containers u32, layout u8, CRC32C u32``.
"""

from __future__ import annotations

import attrs

from ...storage_backends.base.checksum import Buffer, crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    DataCorruption,
    StorageFull,
    StoreMismatch,
)
from ...storage_backends.base.values import Value

STORE_RECORD = "_system/store"
MIGRATION_RECORD = "_system/migration"
"""The same record while a store is moved there, which is no store yet (rule E6)."""
_MAGIC = 0x544C5352  # "TLSR"
_VERSION = 1
_LAYOUT = 1
"""Containers have chains of elements. A layout is never taken back: code that does not know it refuses."""
_BYTES = 4 + 2 + 16 + 4 + 1 + 4


@attrs.frozen(eq=False, repr=False)
class StoreRecord(Value):
    store: bytes
    containers: int
    layout: int = _LAYOUT

    def encode(self) -> bytes:
        out = Encoder().u32(_MAGIC).u16(_VERSION).raw(self.store).u32(self.containers).u8(self.layout)
        body = out.finish()
        return body + crc32c(body).to_bytes(4, "big")

    @staticmethod
    def decode(data: Buffer) -> StoreRecord:
        """Raises ``DecodeError`` for anything but a whole record, ``StoreMismatch`` for a newer one."""
        view = memoryview(data)
        if len(view) < 4 or crc32c(view[:-4]) != int.from_bytes(view[-4:], "big"):
            raise DecodeError(f"a store record of {len(view)} bytes is damaged")

        fields = Decoder(view[:-4])
        magic, version = fields.u32(), fields.u16()
        if magic != _MAGIC:
            raise DecodeError(f"not a store record: {magic:#x}")

        if version > _VERSION:
            raise StoreMismatch(f"{STORE_RECORD} has version {version}: use a newer tierlog")

        record = StoreRecord(bytes(fields.raw(16)), fields.u32(), fields.u8())
        fields.finish()
        if version != _VERSION:
            raise DecodeError(f"not a version of a store record: {version}")

        if record.layout > _LAYOUT:
            raise StoreMismatch(f"{STORE_RECORD} has layout {record.layout}: use a newer tierlog")

        return record


async def read_store_record(chunks: ChunkStorage, name: str = STORE_RECORD) -> StoreRecord | None:
    """The record, or None if there is none."""
    try:
        data = await chunks.read(name, 0, _BYTES + 1)
    except ChunkNotFound:
        return None

    try:
        return StoreRecord.decode(data)
    except DecodeError as error:
        raise DataCorruption(str(error), file=name, offset=0) from error


async def require_store_record(chunks: ChunkStorage, name: str = STORE_RECORD) -> StoreRecord:
    """The record, without which it is damage."""
    record = await read_store_record(chunks, name)
    if record is None:
        raise DataCorruption(
            "the record of the store is missing, or what has its name is no file: this is no long-term "
            "storage of a store, or an unfinished copy of one",
            file=name,
            offset=0,
        )

    return record


async def ensure_store_record(
    chunks: ChunkStorage,
    store: bytes,
    containers: int,
    found: StoreRecord | None = None,
    name: str = STORE_RECORD,
) -> bool:
    """Create the record, or check the one that is there, and check that creation is conditional. ``found``:
    the record, if it was read before. Returns False if long-term storage has no room for that check.

    Raises ``StoreMismatch`` if the long-term storage is another store's, or cannot create conditionally."""
    found = found or await read_store_record(chunks, name)
    if found is None:
        found = StoreRecord(store, containers)
        try:
            await chunks.create_with_content(name, [found.encode()])
        except ChunkExists:
            # Something has its name that cannot be read: a folder, or a pipe.
            found = await require_store_record(chunks, name)
    check_store_record(found, store, containers)
    # Other bytes than the record's: a creation whose answer is lost counts as done if what is read back is
    # equal (rule A9).
    try:
        await chunks.create_with_content(name, [found.encode(), b"\0"])
    except ChunkExists:
        return True
    except StorageFull:
        return False

    await chunks.create_with_content(name, [found.encode()])  # it overwrites again
    raise StoreMismatch(
        "long-term storage overwrote an object instead of refusing to create it again: use a storage with "
        "conditional creation"
    )


def check_store_record(record: StoreRecord, store: bytes, containers: int) -> None:
    """Raises ``StoreMismatch`` if the record is another store's."""
    if record.store != store:
        raise other_store(record.store, store)

    if record.containers != containers:
        raise StoreMismatch(
            f"long-term storage was created with {record.containers} containers, this folder with "
            f"{containers}: the folder is not this store's"
        )


def being_moved(place: str, store: bytes = b"") -> StoreMismatch:
    """``store``: the one that is moved, if it is known."""
    what = f"store {store.hex()}" if store else "a store"
    return StoreMismatch(
        f"{what} is being moved to {place}, and that is not complete: complete it with `tierlog migrate "
        f"--confirm`, or name another place. If the move was given up or refused, nothing there belongs to a "
        f"store: delete {place} with all that is in it"
    )


def other_store(found: bytes, own: bytes) -> StoreMismatch:
    return StoreMismatch(
        f"the long-term storage belongs to store {found.hex()}, this folder to {own.hex()}: give each store "
        f"its own folder or S3 prefix. If the logs of that store (wal/) were lost, remove this new wal/, "
        f"then recover (`tierlog recover --from-lts`) or restore a backup (`tierlog restore`); adopting is "
        f"for copies of the same store only"
    )
