"""The object in a slot of a log in a bucket: one group, or a fence (rules L2 and L3). No I/O.

Layout, big-endian: a header of 108 bytes, then the payload, which a fence does not have. Header: magic,
format version, kind (2), log id (16), slot (8), epoch (8), put id (16), settled (8), next (8), group (8),
truncation address (8), tag (4), payload length (4), 0 (4), CRC32C of all before, the same CRC continued over
the payload.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

import attrs

from ...storage_backends.base.checksum import Buffer, crc32c, crc32c_of
from ...storage_backends.base.errors import DataCorruption, StoreMismatch
from ...storage_backends.base.values import Value
from .contract import GROUP_BYTES_MAX

FORMAT_VERSION = 1
_MAGIC = 0x544C_4F53  # "TLOS"
_FIELDS = struct.Struct(">IHH16sQQ16sQQQQIII")
_CHECKS = struct.Struct(">II")
SLOT_HEADER_BYTES = _FIELDS.size + _CHECKS.size
FENCE_BYTES = SLOT_HEADER_BYTES


class SlotKind(enum.IntEnum):
    FENCE = 1
    GROUP = 2


@attrs.frozen(eq=False, repr=False)
class SlotHeader(Value):
    kind: SlotKind
    slot: int
    epoch: int
    put_id: bytes
    settled: int
    """When this put began, everything in slots below this one was settled: what is missing there is lost."""
    next: int
    """The slot in which the log goes on."""
    number: int
    """The group's; in a fence, the next group's."""
    tag: int = 0
    truncate_before: int = 0
    size: int = 0
    """Bytes of the payload."""

    @property
    def position(self) -> int:
        return self.slot


def encode_slot(log_id: bytes, header: SlotHeader, payload: Sequence[Buffer] = ()) -> Sequence[Buffer]:
    """The object's buffers. The payload is not copied."""
    h = header
    ids = (log_id, h.slot, h.epoch, h.put_id, h.settled, h.next, h.number, h.truncate_before)
    head = _FIELDS.pack(_MAGIC, FORMAT_VERSION, h.kind, *ids, h.tag, h.size, 0)
    check = crc32c(head)
    return (head + _CHECKS.pack(check, crc32c_of(payload, check)), *payload)


def decode_slot(data: bytes, log_id: bytes, slot: int, length: int, place: str) -> SlotHeader:
    """The header of the object of ``length`` bytes that begins with ``data``. Raises ``DataCorruption`` if it
    is damaged or another slot's, ``StoreMismatch`` if it has a newer format."""
    if len(data) < SLOT_HEADER_BYTES:
        raise DataCorruption("the object is cut short", file=place, offset=len(data))
    magic, version, kind, *ids, tag, size, _ = _FIELDS.unpack_from(data)
    if magic != _MAGIC or crc32c(data[: _FIELDS.size]) != _CHECKS.unpack_from(data, _FIELDS.size)[0]:
        raise DataCorruption("the object's header is damaged", file=place)
    # After the checksum: damage must not be reported as a newer format.
    if version > FORMAT_VERSION or kind not in set(SlotKind):
        raise StoreMismatch(
            f"{place} has format {version}, this version reads up to {FORMAT_VERSION}: use a newer tierlog"
        )
    found_id, number, epoch, put_id, settled, goes_on, group, truncate_before = ids
    if (found_id, number) != (log_id, slot):
        raise DataCorruption(f"the object is slot {number} of log {found_id.hex()}", file=place)
    if size > GROUP_BYTES_MAX or length != SLOT_HEADER_BYTES + size or not settled <= slot < goes_on:
        raise DataCorruption("the object's header contradicts itself or its length", file=place)
    return SlotHeader(
        SlotKind(kind), slot, epoch, put_id, settled, goes_on, group, tag, truncate_before, size
    )


def payload_of(data: Buffer, place: str) -> memoryview:
    """The payload of the whole object, whose header was checked. Raises ``DataCorruption`` if it is
    damaged."""
    payload = memoryview(data)[SLOT_HEADER_BYTES:]
    head_check, check = _CHECKS.unpack_from(data, _FIELDS.size)
    if crc32c(payload, head_check) != check:
        raise DataCorruption("the group's payload is damaged", file=place, offset=SLOT_HEADER_BYTES)
    return payload
