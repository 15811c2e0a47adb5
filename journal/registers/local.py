"""The register of a local log: a file of 4096 bytes with the log's epoch and each owner's watermark (rules W1
and W3).

Layout, big-endian. Bytes 0..511, one sector: the epoch record. From 512: 16 watermark slots of 64 bytes; the
owner of epoch ``e`` writes slot ``e % 16``. The rest is zero.

Ordering (W1): raise = flock, read, write, sync, unlock; only then is any WAL file read. The file is created
complete under another name, linked to its own, and never replaced. Slots are written unsynced, except at
open, roll and clean close. Crash: an epoch record is in one sector and is old or new; so is a slot.
Cancellation: programs are never abandoned. Torn reads: another process may write during a read, so a record
that fails its check is read again a few times before it counts as damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.errors import DataCorruption, NotOwner, StoreMismatch
from ...storage_backends.base.files import (
    Close,
    FileHandle,
    IoCall,
    IsNamed,
    Link,
    Lock,
    Open,
    Program,
    Read,
    Sync,
    Unlink,
    Unlock,
    Write,
    sync_ancestry,
)
from ...storage_backends.base.ids import EPOCH_MAX

REGISTER_BYTES = 4096
EPOCH_RECORD_BYTES = 512
SLOT_BYTES = 64
SLOTS = 16
FORMAT_VERSION = 1
NOBODY = bytes(16)
"""The owner id of an opener that has none."""

_MAGIC = 0x544C_5247  # "TLRG"
_EPOCH = struct.Struct(">IHH16sQ16s")
_SLOT = struct.Struct(">QIQQB")
_CRC = struct.Struct(">I")
_READS_MAX = 4

P = TypeVar("P")
Raising = Callable[[FileHandle], Program[tuple[int, int]]]
"""``raise_locked`` with all but its handle."""
Raised = tuple[FileHandle, int, int]
"""The register, the epoch before, and the epoch now."""


class OtherLog(StoreMismatch):
    """The register is another log's."""


class Watermark(Struct, frozen=True):
    """How far the log of ``epoch`` is known to be durable: it does not end before this (rule W3)."""

    epoch: int
    sequence: int
    """The file of that epoch."""
    end: int
    """Bytes of that file that are durable."""
    last_group: int
    clean: bool
    """Whether the owner closed the log here: the footer."""


class RegisterImage(Struct, frozen=True):
    epoch: int
    watermarks: dict[int, Watermark]
    """By epoch."""


def encode_epoch(log_id: bytes, epoch: int, owner: bytes = NOBODY) -> bytes:
    """``owner``: 16 bytes that identify the opener that raised it."""
    head = _EPOCH.pack(_MAGIC, FORMAT_VERSION, 0, log_id, epoch, owner)
    body = head.ljust(EPOCH_RECORD_BYTES - _CRC.size, b"\0")
    return body + _CRC.pack(crc32c(body))


def decode_epoch(data: bytes, log_id: bytes, path: str) -> int:
    """The epoch. Raises as ``decode_taken``."""
    return decode_taken(data, log_id, path)[0]


def decode_taken(data: bytes, log_id: bytes, path: str) -> tuple[int, bytes]:
    """The epoch and its owner id. Raises ``DataCorruption`` if it is damaged, ``OtherLog`` if it is
    another log's, ``StoreMismatch`` if it has a newer format."""
    if len(data) < EPOCH_RECORD_BYTES:
        raise DataCorruption("the register is cut short", file=path, offset=len(data))
    body = data[: EPOCH_RECORD_BYTES - _CRC.size]
    magic, version, _, found_id, epoch, owner = _EPOCH.unpack_from(body)
    if magic != _MAGIC or crc32c(body) != _CRC.unpack_from(data, len(body))[0]:
        raise DataCorruption("the register's epoch record is damaged", file=path, offset=0)
    # After the checksum: damage must not be reported as a newer format.
    if version > FORMAT_VERSION:
        raise StoreMismatch(
            f"{path} has format {version}, this version reads up to {FORMAT_VERSION}: use a newer tierlog"
        )
    if found_id != log_id:
        raise OtherLog(
            f"{path} belongs to log {found_id.hex()}, not to {log_id.hex()}: it was copied from another "
            f"store, or folders were mixed up"
        )
    if epoch > EPOCH_MAX:
        raise DataCorruption(f"no log has the epoch {epoch}", file=path, offset=0)
    return epoch, owner


def slot_offset(epoch: int) -> int:
    return EPOCH_RECORD_BYTES + epoch % SLOTS * SLOT_BYTES


def encode_watermark(log_id: bytes, mark: Watermark) -> bytes:
    head = _SLOT.pack(mark.epoch, mark.sequence, mark.end, mark.last_group, mark.clean)
    body = head.ljust(SLOT_BYTES - _CRC.size, b"\0")
    return body + _CRC.pack(crc32c(body, crc32c(log_id)))


def decode_watermark(data: bytes, log_id: bytes) -> Watermark | None:
    """The watermark; None if the slot is damaged."""
    body = data[: SLOT_BYTES - _CRC.size]
    if len(data) != SLOT_BYTES or crc32c(body, crc32c(log_id)) != _CRC.unpack_from(data, len(body))[0]:
        return None
    epoch, sequence, end, last_group, clean = _SLOT.unpack_from(body)
    return Watermark(epoch, sequence, end, last_group, bool(clean))


def decode_image(data: bytes, log_id: bytes, path: str) -> RegisterImage:
    """The whole register. Raises ``DataCorruption`` with the offset of any damage."""
    epoch = decode_epoch(data, log_id, path)
    if len(data) != REGISTER_BYTES:
        raise DataCorruption(
            f"the register has {len(data)} bytes instead of {REGISTER_BYTES}",
            file=path,
            offset=min(len(data), REGISTER_BYTES),
        )

    watermarks = {}
    for index in range(SLOTS):
        offset = EPOCH_RECORD_BYTES + index * SLOT_BYTES
        slot = data[offset : offset + SLOT_BYTES]
        if not any(slot):
            continue
        mark = decode_watermark(slot, log_id)
        # A slot in another one's position is a stray write, however sound it is.
        if mark is None or mark.epoch % SLOTS != index:
            raise DataCorruption("a watermark in the register is damaged", file=path, offset=offset)
        watermarks[mark.epoch] = mark
    return RegisterImage(epoch, watermarks)


def read_register(handle: FileHandle, log_id: bytes) -> Program[RegisterImage]:
    """Read and check the whole register; again if a writer may have been writing a slot."""
    for _ in range(_READS_MAX - 1):
        # Without the lock, which an owner would otherwise have to take for each append. The price is a read
        # that may be torn.
        data = yield Read(handle, 0, REGISTER_BYTES + 1)
        try:
            return decode_image(data, log_id, handle.path)
        except DataCorruption:
            continue  # Real damage is still there at the last read below, which raises.
    return decode_image((yield Read(handle, 0, REGISTER_BYTES + 1)), log_id, handle.path)


def confirm_epoch(handle: FileHandle, log_id: bytes, epoch: int, owner: bytes) -> Program[None]:
    """W1: raises ``NotOwner`` unless the register *equals* ``epoch``, as raised by ``owner``."""
    expected = encode_epoch(log_id, epoch, owner)
    for _ in range(_READS_MAX - 1):
        # By its bytes, on the path of each append: decoding is left to the case that they differ.
        if (yield Read(handle, 0, EPOCH_RECORD_BYTES)) == expected:
            return
    found = decode_taken((yield Read(handle, 0, EPOCH_RECORD_BYTES)), log_id, handle.path)
    if found != (epoch, owner):
        raise fenced(handle.path, epoch, found[0])


def confirm_named(handle: FileHandle, epoch: int) -> Program[None]:
    """W1: raises ``NotOwner`` unless the register's path leads to this file. If the log's folder was moved or
    replaced, another log may be there."""
    if not (yield IsNamed(handle)):
        raise moved(handle.path, epoch)


def moved(path: str, epoch: int) -> NotOwner:
    return NotOwner(
        f"epoch {epoch} ends: {path} is another file, or missing, because its folder was moved or replaced; "
        f"open the store again where it is now"
    )


def fenced(path: str, epoch: int, found: int) -> NotOwner:
    return NotOwner(
        f"epoch {epoch} was fenced: {path} has epoch {found}; open the log again only if this process is "
        f"meant to own it"
    )


def open_register(path: str, *, write: bool) -> Program[FileHandle | None]:
    try:
        handle: FileHandle = yield Open(path, write=write)
    except FileNotFoundError:
        return None
    return handle


def locked(handle: FileHandle, body: Callable[[FileHandle], Program[P]]) -> Program[P]:
    yield Lock(handle)
    try:
        return (yield from body(handle))
    finally:
        yield Unlock(handle)


def raise_new(folder: str, path: str, log_id: bytes, raising: Raising) -> Program[Raised]:
    """W1, of a log without WAL files: create the register if need be, and raise it with ``raising``, which is
    called under its lock. Returns its handle and what ``raising`` returns.

    The creator keeps the lock until the name is durable and the epoch raised. So a register that still has
    epoch 0 may lose its name in a power loss, even if a later sync of the folder succeeds: it is removed,
    under its lock, and created again. An opener that waited for that lock finds that its file has no name.
    """
    while True:
        handle = yield from open_register(path, write=True)
        if handle is not None:
            raised = yield from _or_close(handle, _raise_named(handle, log_id, raising))
        else:
            raised = yield from _create_raised(folder, path, log_id, raising)
        if raised is not None:
            return raised


def _raise_named(handle: FileHandle, log_id: bytes, raising: Raising) -> Program[Raised | None]:
    """None if the register has to be created."""

    def unless_removed(handle: FileHandle) -> Program[Raised | None]:
        if not (yield IsNamed(handle)):
            return None
        # Its creator ended before the name was known to be durable.
        if decode_epoch((yield Read(handle, 0, EPOCH_RECORD_BYTES)), log_id, handle.path) == 0:
            yield Unlink(handle.path)
            return None
        return handle, *(yield from raising(handle))

    raised = yield from locked(handle, unless_removed)
    if raised is None:
        yield Close(handle)
    return raised


def _create_raised(folder: str, path: str, log_id: bytes, raising: Raising) -> Program[Raised | None]:
    """Create the register with epoch 0, complete and durable before it gets its name, and raise it. None if
    another process is first.

    The draft is written under its flock and only while ``path`` does not exist: a creator that waited for the
    lock may hold the file that has become the register meanwhile.
    """
    draft = yield from _open_draft(path + ".new")
    try:
        yield Lock(draft)
        # Once more under the lock: whoever had it before may have linked the register meanwhile.
        if not (yield IsNamed(draft)):
            return None
        existing = yield from open_register(path, write=False)
        if existing is not None:
            yield Close(existing)
            return None
        content = encode_epoch(log_id, 0).ljust(REGISTER_BYTES, b"\0")
        yield Write(draft, 0, (content,))
        yield Sync(draft)
        if not (yield from _link_draft(path)):
            return None
        # W11: before the epoch is raised, so that epoch 0 marks a name that may not be durable. The folder's
        # own name too: another opener may have made it again while it was empty.
        yield from sync_ancestry(folder, folder.rpartition("/")[0] or "/")
        handle: FileHandle = yield Open(path, write=True)
        return handle, *(yield from _or_close(handle, raising(handle)))
    finally:
        yield Close(draft)


def _open_draft(path: str) -> Program[FileHandle]:
    """Open the draft, which another creator may create or remove between any two calls."""
    while True:
        try:
            made: FileHandle = yield Open(path, write=True, create=True)
            return made
        except FileExistsError:
            found = yield from open_register(path, write=True)
            if found is not None:
                return found


def _link_draft(path: str) -> Program[bool]:
    """Returns whether the draft became the register. If not, another creator was first, with the same
    bytes."""
    try:
        yield Link(path + ".new", path)
    except (FileExistsError, FileNotFoundError):
        return False
    with suppress(FileNotFoundError):
        yield Unlink(path + ".new")
    return True


def raise_locked(
    handle: FileHandle,
    log_id: bytes,
    floor: int,
    *,
    owner: bytes = NOBODY,
    expected: Collection[int] | None = None,
    tried: list[int] | None = None,
) -> Program[tuple[int, int]]:
    """W1, by the holder of the lock: set the epoch to 1 + max(epoch, ``floor``), durably; returns (epoch
    before, epoch now). The lock excludes every other writer of the epoch record, so one read is enough.

    With ``expected`` it is a compare-and-set: raises ``NotOwner`` and writes nothing if the epoch is none of
    these or has another owner id. The new epoch is added to ``tried`` before it is written. If the write has
    no effect, the next opener takes the same number, so the number alone does not identify the owner.
    """
    before, by = decode_taken((yield Read(handle, 0, EPOCH_RECORD_BYTES)), log_id, handle.path)
    if expected is not None and (before not in expected or by != owner):
        raise fenced(handle.path, max(expected, default=0), before)
    epoch = 1 + max(before, floor)
    if epoch > EPOCH_MAX:
        raise DataCorruption(f"the epoch {epoch - 1} has no successor", file=handle.path, offset=0)
    if tried is not None:
        # Before the write, which may take effect although it fails.
        tried.append(epoch)
    yield Write(handle, 0, (encode_epoch(log_id, epoch, owner),))
    yield Sync(handle)
    return before, epoch


def _or_close(handle: FileHandle, program: Program[P]) -> Program[P]:
    """``program``; if it fails, the handle is closed."""
    try:
        return (yield from program)
    except Exception:
        closing: IoCall = Close(handle)
        yield closing
        raise
