"""The decoders of a log in a bucket: the register, the objects in slots, and their keys; and
of the records of a service."""

from __future__ import annotations

import struct

import attrs

from fuzz.target import Target
from tierlog.actors.supervisor.control.record import ControlRecord, decode_control, encode_control
from tierlog.journal.coordination.lease_record import LeaseRecord, decode_lease, encode_lease
from tierlog.journal.log.s3_layout import S3LogLayout
from tierlog.journal.log.s3_register import S3Register, decode_s3_register, encode_s3_register
from tierlog.journal.log.s3_slot import (
    SLOT_HEADER_BYTES,
    SlotHeader,
    SlotKind,
    decode_slot,
    encode_slot,
    payload_of,
)
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch

LOG_ID = bytes(range(16))
REFUSED = (DataCorruption, StoreMismatch)
_ID = b"put-put-put-put-"
_REGISTER = S3Register(7, b"owner-owner-owne", b"opening-opening-", _ID, 19)
_GROUP = SlotHeader(SlotKind.GROUP, 20, 7, _ID, 18, 21, 5, 3, 4, 5)
_FENCE = SlotHeader(SlotKind.FENCE, 20, 7, _ID, 20, 36, 3)
_LAYOUT = S3LogLayout("wal/")
_CONTROL = ControlRecord(7, b"secret--" * 4, "10.0.0.1", 8471, "node-a", ("a", "b.2"))
_CHECKED = SLOT_HEADER_BYTES - 8
"""Where a slot's checksums begin."""


def _decode(data: bytes) -> tuple[SlotHeader, bytes]:
    header = decode_slot(data, LOG_ID, 20, len(data), "slot")
    return header, bytes(payload_of(data, "slot"))


def _encode(found: tuple[SlotHeader, bytes]) -> bytes:
    return b"".join(encode_slot(LOG_ID, found[0], [found[1]]))


def _decode_body(body: bytes) -> tuple[SlotHeader, bytes]:
    head, payload = body[:_CHECKED], body[_CHECKED:]
    check = crc32c(head)
    return _decode(head + struct.pack(">II", check, crc32c(payload, check)) + payload)


def _encode_body(found: tuple[SlotHeader, bytes]) -> bytes:
    data = _encode(found)
    return data[:_CHECKED] + data[SLOT_HEADER_BYTES:]


def _decode_register_body(body: bytes) -> S3Register:
    return decode_s3_register(body + crc32c(body).to_bytes(4), LOG_ID, "register")


_SLOTS = [(_GROUP, b"hello"), (_FENCE, b""), (attrs.evolve(_GROUP, size=0), b"")]

_LEASE = LeaseRecord(True, b"lease-lease-leas", _ID, 10_000, "process 7")

S3_LOG_TARGETS = [
    Target(
        "lease",
        lambda data: decode_lease(data, "lease"),
        [encode_lease(_LEASE), encode_lease(attrs.evolve(_LEASE, held=False, holder=""))],
        errors=REFUSED,
        encode=encode_lease,
        checksummed=True,
    ),
    Target(
        "lease behind a right checksum",
        lambda body: decode_lease(body + crc32c(body).to_bytes(4), "lease"),
        [encode_lease(_LEASE)[:-4]],
        errors=REFUSED,
        encode=lambda lease: encode_lease(lease)[:-4],
    ),
    Target(
        "control record",
        lambda data: decode_control(data, "control"),
        [encode_control(_CONTROL)],
        errors=REFUSED,
        encode=encode_control,
        checksummed=True,
    ),
    Target(
        "control record behind a right checksum",
        lambda body: decode_control(body + crc32c(body).to_bytes(4), "control"),
        [encode_control(_CONTROL)[:-4]],
        errors=REFUSED,
        encode=lambda record: encode_control(record)[:-4],
    ),
    Target(
        "S3 log register",
        lambda data: decode_s3_register(data, LOG_ID, "register"),
        [encode_s3_register(LOG_ID, _REGISTER)],
        errors=REFUSED,
        encode=lambda register: encode_s3_register(LOG_ID, register),
        checksummed=True,
    ),
    Target(
        "S3 log register behind a right checksum",
        _decode_register_body,
        [encode_s3_register(LOG_ID, _REGISTER)[:-4]],
        errors=REFUSED,
        encode=lambda register: encode_s3_register(LOG_ID, register)[:-4],
        canonical=False,  # two bytes are for a later version
    ),
    Target(
        "S3 log slot", _decode, list(map(_encode, _SLOTS)), errors=REFUSED, encode=_encode, checksummed=True
    ),
    Target(
        "S3 log slot behind right checksums",
        _decode_body,
        list(map(_encode_body, _SLOTS)),
        errors=REFUSED,
        encode=_encode_body,
        canonical=False,  # as above
    ),
    Target(
        "S3 log key of a slot",
        lambda data: _LAYOUT.slot_in(data.decode("latin-1")),
        [_LAYOUT.slot(20).encode(), _LAYOUT.slot((1 << 64) - 1).encode()],
        errors=(),
        encode=lambda slot: _LAYOUT.slot(slot).encode(),
        canonical=False,  # the store has listed it below the prefix
    ),
]
