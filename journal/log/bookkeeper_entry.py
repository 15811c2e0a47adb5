"""The entries of a log in ledgers: a group, or one part of a large one (rule B3). No I/O.

Layout, big-endian: a header of 72 bytes, then the part's payload. Header: magic, format version, part (2),
log id (16), epoch (8), group (8), truncation address (8), tag (4), payload length of the group (4), number of
parts (2), 0 (2), payload length of the part (4), CRC32C of all before, the same CRC continued over the part's
payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...storage_backends.base.checksum import Buffer, crc32c, crc32c_of
from ...storage_backends.base.errors import DataCorruption, StoreMismatch
from ...storage_backends.base.ledger_service import ENTRY_BYTES_MAX
from .contract import GROUP_BYTES_MAX

FORMAT_VERSION = 1
PART_BYTES = ENTRY_BYTES_MAX
"""The payload of every part of a group but its last. Permanent."""
_MAGIC = 0x544C_4245  # "TLBE"
_FIELDS = struct.Struct(">IHH16sQQQIIHHI")
_CHECKS = struct.Struct(">II")
ENTRY_HEADER_BYTES = _FIELDS.size + _CHECKS.size


class EntryHeader(NamedTuple):
    """What an entry says of its group. A tuple, because an opening makes one per entry."""

    epoch: int
    number: int
    tag: int
    truncate_before: int
    size: int
    """Bytes of the group's payload."""
    part: int = 0
    """The number of this part, from 0."""


def parts_of(size: int) -> int:
    """How many entries a group of ``size`` bytes has."""
    return max(1, -(-size // PART_BYTES))


def encode_entries(log_id: bytes, header: EntryHeader, payload: Sequence[Buffer]) -> list[Sequence[Buffer]]:
    """The buffers of each of the group's entries. The payload is not copied."""
    h, count = header, parts_of(header.size)
    entries: list[Sequence[Buffer]] = []
    for part, buffers in enumerate(_split(payload, count)):
        length = sum(map(len, buffers))
        group = (h.epoch, h.number, h.truncate_before, h.tag, h.size, count, 0)
        head = _FIELDS.pack(_MAGIC, FORMAT_VERSION, part, log_id, *group, length)
        check = crc32c(head)
        entries.append((head + _CHECKS.pack(check, crc32c_of(buffers, check)), *buffers))
    return entries


def _split(payload: Sequence[Buffer], count: int) -> Iterator[Sequence[Buffer]]:
    """The buffers of each part."""
    if count == 1:
        yield payload
        return
    buffers: list[Buffer] = []
    room = PART_BYTES
    for buffer in payload:
        view = memoryview(buffer)
        while len(view) > room:
            yield [*buffers, view[:room]]
            view, buffers, room = view[room:], [], PART_BYTES
        buffers.append(view)
        room -= len(view)
    yield buffers


def decode_entry(data: bytes, log_id: bytes, place: str) -> tuple[EntryHeader, memoryview]:
    """The header and the part's payload. Raises ``DataCorruption`` if they are damaged, ``StoreMismatch`` if
    they have a newer format."""
    if len(data) < ENTRY_HEADER_BYTES:
        raise DataCorruption("the entry is cut short", file=place, offset=len(data))
    magic, version, part, found_id, *group, parts, _, length = _FIELDS.unpack_from(data)
    head_check, check = _CHECKS.unpack_from(data, _FIELDS.size)
    if magic != _MAGIC or crc32c(data[: _FIELDS.size]) != head_check:
        raise DataCorruption("the entry's header is damaged", file=place)
    # After the checksum: damage must not be reported as a newer format.
    if version > FORMAT_VERSION:
        raise StoreMismatch(
            f"{place} has format {version}, this version reads up to {FORMAT_VERSION}: use a newer tierlog"
        )
    epoch, number, truncate_before, tag, size = group
    payload = memoryview(data)[ENTRY_HEADER_BYTES:]
    if found_id != log_id:
        raise DataCorruption(f"the entry is of log {found_id.hex()}", file=place)
    if size > GROUP_BYTES_MAX or parts != parts_of(size) or part >= parts or len(payload) != length:
        raise DataCorruption("the entry's header contradicts itself or its length", file=place)
    if length != min(PART_BYTES, size - part * PART_BYTES):
        raise DataCorruption("the entry has another length than its part", file=place)
    if crc32c(payload, head_check) != check:
        raise DataCorruption("the entry's payload is damaged", file=place, offset=ENTRY_HEADER_BYTES)
    return EntryHeader(epoch, number, tag, truncate_before, size, part), payload
