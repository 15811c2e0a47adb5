"""The record ``control`` of a store in a bucket: where its supervisor listens for hosts that join, the secret
by which both sides know each other, and which hosts had joined (rules V4 and V12). No I/O.

Layout, big-endian: magic, format version, term (8), secret (32), port (2), store id (16), put id (16),
address and machine, each a length (2) and UTF-8, number of hosts (2), their ids, each a length (1) and ASCII,
CRC32C of all before. Version 1 had neither store id nor put id. Magic, version and a CRC at the end are in
every version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import attrs

from ....journal.coordination.contract import RECORD_BYTES_MAX
from ....storage_backends.base.checksum import crc32c
from ....storage_backends.base.errors import DataCorruption, StoreMismatch
from ..hosts import joined_id_refusal

FORMAT_VERSION = 2
SECRET_BYTES = 32
_MAGIC = 0x544C_4354  # "TLCT"
_FIELDS, _IDS = struct.Struct(">IHQ32sH"), struct.Struct(">16s16s")
_LONG, _SHORT, _CRC = struct.Struct(">H"), struct.Struct(">B"), struct.Struct(">I")
_ENVELOPE = struct.Struct(">IH")
_NONE = bytes(16)


@attrs.frozen
class ControlRecord:
    term: int
    secret: bytes = attrs.field(repr=False)
    """32 bytes that each supervisor draws when it starts."""
    address: str
    port: int
    machine: str
    """The supervisor's, for messages."""
    hosts: tuple[str, ...] = ()
    """The ids of those that joined, sorted."""
    store_id: bytes = _NONE
    """The store's; zeros in a record of version 1."""
    put_id: bytes = _NONE
    """That no other attempt to put a record has (rule D1); zeros in a record of version 1."""

    def is_of(self, store: str) -> bool:
        """Whether it may be the record of the store with this id in hexadecimal: one of version 1 does not
        say."""
        return self.store_id == _NONE or self.store_id.hex() == store


def encode_control(record: ControlRecord) -> bytes:
    """Of more hosts than a record holds, about 240, the last ones are left out: the next supervisor does not
    wait for them."""
    head = _FIELDS.pack(_MAGIC, FORMAT_VERSION, record.term, record.secret, record.port)
    head += _IDS.pack(record.store_id, record.put_id)
    for text in (record.address, record.machine):
        head += _text(_LONG, text)
    room = RECORD_BYTES_MAX - len(head) - _LONG.size - _CRC.size
    hosts = list(_fitting((_text(_SHORT, host) for host in record.hosts), room))
    body = head + _LONG.pack(len(hosts)) + b"".join(hosts)
    return body + _CRC.pack(crc32c(body))


def decode_control(data: bytes, place: str) -> ControlRecord:
    """Raises ``DataCorruption`` if it is damaged, ``StoreMismatch`` if it has a newer format."""
    end = len(data) - _CRC.size
    if end < _ENVELOPE.size or crc32c(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise DataCorruption(
            "the control record is damaged: the active supervisor puts another one in its place",
            file=place,
        )

    magic, version = _ENVELOPE.unpack_from(data)
    # After the checksum: damage must not be reported as a newer format.
    if magic == _MAGIC and version > FORMAT_VERSION:
        raise StoreMismatch(
            f"{place} has format {version}, this version reads up to {FORMAT_VERSION}: use a newer tierlog, "
            f"or remove the record if no newer one has served this store"
        )
    try:
        if magic != _MAGIC or not 1 <= version <= FORMAT_VERSION:
            raise ValueError("another magic or version")
        return _decode_body(data[:end], version)
    except (ValueError, struct.error) as error:
        raise DataCorruption(f"this is no control record ({error})", file=place) from error


def _decode_body(body: bytes, version: int) -> ControlRecord:
    _, _, term, secret, port = _FIELDS.unpack_from(body)
    at, store_id, put_id = _FIELDS.size, _NONE, _NONE
    if version > 1:
        store_id, put_id = _IDS.unpack_from(body, at)
        at += _IDS.size
    address, at = _read(_LONG, body, at)
    machine, at = _read(_LONG, body, at)
    (count,) = _LONG.unpack_from(body, at)
    at += _LONG.size
    hosts = []
    for _ in range(count):
        host, at = _read(_SHORT, body, at)
        if refusal := joined_id_refusal(host):
            raise ValueError(refusal)
        hosts.append(host)
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes are left")
    return ControlRecord(term, secret, address, port, machine, tuple(hosts), store_id, put_id)


def _text(size: struct.Struct, text: str) -> bytes:
    data = text.encode()
    return size.pack(len(data)) + data


def _read(size: struct.Struct, body: bytes, at: int) -> tuple[str, int]:
    """The text at ``at``, and where it ends."""
    (length,) = size.unpack_from(body, at)
    begin = at + size.size
    if begin + length > len(body):
        raise ValueError("a text is cut")
    return body[begin : begin + length].decode(), begin + length


def _fitting(texts: Iterable[bytes], room: int) -> Iterator[bytes]:
    """As many of them as fit."""
    for text in texts:
        room -= len(text)
        if room < 0:
            return
        yield text
