"""The identity of a store, ``wal/store``: store id, log id, and the fixed number of containers.

It is written once and whole (temporary name, sync, link, sync of the folder) and never changes. A newer
format version is refused and left untouched.

Layout: ``magic u32, version u16, store id 16 bytes, log id 16 bytes, containers u32, created u64
(milliseconds since 1970), CRC32C u32``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.codec import Decoder, Encoder
from ...storage_backends.base.errors import DataCorruption, StoreMismatch
from ...storage_backends.base.files import (
    Close,
    FileHandle,
    FolderEntry,
    ListFolder,
    Lock,
    Open,
    Program,
    Read,
    create_whole,
    remake_name,
)

FORMAT_VERSION = 1
_MAGIC = 0x544C5354  # "TLST"
_BYTES = 4 + 2 + 16 + 16 + 4 + 8 + 4


class StoreIdentity(Struct, frozen=True):
    store_id: bytes
    log_id: bytes
    """Each container's log id is derived from it."""
    containers: int
    created_ms: int
    """Wall time, for display."""

    def container_log_id(self, container: int) -> bytes:
        return self.log_id[:12] + container.to_bytes(4, "big")


def encode(identity: StoreIdentity) -> bytes:
    body = Encoder().u32(_MAGIC).u16(FORMAT_VERSION).raw(identity.store_id).raw(identity.log_id)
    data = body.u32(identity.containers).u64(identity.created_ms).finish()
    return data + crc32c(data).to_bytes(4, "big")


def decode(data: bytes, path: str) -> StoreIdentity:
    """Raises ``StoreMismatch`` for a newer version, ``DataCorruption`` for anything else but a whole
    identity."""
    magic, version = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:6], "big")
    is_whole = len(data) >= 4 and crc32c(data[:-4]) == int.from_bytes(data[-4:], "big")
    # In this length a wrong checksum means that the version is damaged; a newer format may have another one.
    if len(data) >= 6 and magic == _MAGIC and version > FORMAT_VERSION and (is_whole or len(data) != _BYTES):
        raise StoreMismatch(
            f"{path}: the folder has format version {version}, this tierlog reads up to {FORMAT_VERSION}: "
            f"use a newer tierlog"
        )

    if len(data) != _BYTES or not is_whole:
        raise DataCorruption("the store's identity is damaged", file=path, offset=0)

    fields = Decoder(data[:-4])
    if fields.u32() != _MAGIC or fields.u16() != FORMAT_VERSION:
        raise DataCorruption("this is not the identity of a store", file=path, offset=0)

    return StoreIdentity(bytes(fields.raw(16)), bytes(fields.raw(16)), fields.u32(), fields.u64())


def identity_file(folder: str) -> str:
    return f"{folder}/store"


def read_identity(folder: str) -> Program[StoreIdentity | None]:
    """The identity in ``folder``, or None if there is no store. Logs without an identity are refused."""
    path = identity_file(folder)
    try:
        handle = yield Open(path)
    except FileNotFoundError:
        yield from _refuse_orphaned_logs(folder)
        return None

    # One byte more than an identity has, so that a longer file is refused.
    data = yield Read(handle, 0, _BYTES + 1)
    yield Close(handle)
    return decode(data, path)


def _refuse_orphaned_logs(folder: str) -> Program[None]:
    try:
        entries = yield ListFolder(folder)
    except FileNotFoundError:
        return

    if _has_logs(entries):
        raise DataCorruption(
            "the store's identity is missing although there are logs",
            file=identity_file(folder),
            offset=0,
        )


def create_identity(folder: str, identity: StoreIdentity, temporary: str) -> Program[StoreIdentity]:
    """Make the folder a store. If two processes try, one wins, and both return the winner's identity."""
    yield from create_whole(identity_file(folder), f"{folder}/{temporary}", encode(identity))
    found = yield from read_identity(folder)
    assert found is not None
    return found


def confirm_identity(folder: str, identity: StoreIdentity, temporary: str) -> Program[None]:
    """Make the name of an existing identity durable, if nothing shows that it is: its creator may have been
    killed before, or have failed. Folders of logs are made after it (rule W11).

    An opening that holds the identity's lock counts on the file, so it is replaced by a copy under the lock.
    """
    path = identity_file(folder)
    held: FileHandle = yield Open(path)
    try:
        yield Lock(held)
        if not _has_logs((yield ListFolder(folder))):
            yield from remake_name(path, f"{folder}/{temporary}", encode(identity))
    finally:
        yield Close(held)


def _has_logs(entries: Sequence[FolderEntry]) -> bool:
    return any(entry.is_folder and entry.name.isdigit() for entry in entries)
