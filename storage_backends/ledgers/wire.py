"""The protocol between this process and its sidecar, as ``java/Sidecar.java`` describes it. No I/O.

Both sides change together: a sidecar is compiled from the sources beside this module.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping

from ..base.codec import DecodeError, Decoder, Encoder
from ..base.errors import (
    DataCorruption,
    InvalidArgument,
    OutcomeUnknown,
    TierlogError,
    Unavailable,
    Unsupported,
)
from ..base.ledger_service import LedgerDescription, LedgerFenced, NoSuchEntry, NoSuchLedger, NotEnoughBookies

PROTOCOL = 1
_MAGIC = 0x544C_5343  # "TLSC"
_HELLO = struct.Struct(">IHH")
HELLO = _HELLO.pack(_MAGIC, PROTOCOL, 0)
_REQUEST = struct.Struct(">IIB")
REPLY_HEAD = struct.Struct(">IIB")
_COUNTED = 5
"""Bytes of a head that its length counts: the id and the operation or status."""
REPLY_BYTES_MAX = 20 << 20


class Operation(enum.IntEnum):
    CONNECT = 1
    COUNT_BOOKIES = 2
    CREATE_LEDGER = 3
    APPEND = 4
    OPEN_LEDGER = 5
    READ = 6
    CLOSE_LEDGER = 7
    DELETE_LEDGER = 8
    LIST_LEDGERS = 9
    DESCRIBE_LEDGER = 10
    DROP_LEDGER = 11
    LOAD = 20
    CREATE = 21
    REPLACE = 22
    REMOVE = 23
    CHILDREN = 24
    CHECK = 25
    SESSION = 28


CHANGES = frozenset(
    {
        Operation.CREATE_LEDGER,
        Operation.APPEND,
        Operation.DELETE_LEDGER,
        Operation.CREATE,
        Operation.REPLACE,
        Operation.REMOVE,
    }
)
"""Their outcome is unknown if no reply arrives."""
OPENINGS = frozenset({Operation.CREATE_LEDGER, Operation.OPEN_LEDGER})
"""Their results begin with a handle, which the sidecar keeps until it is dropped."""
HANDLE_BYTES = 4


class Status(enum.IntEnum):
    OK = 0
    UNAVAILABLE = 1
    UNKNOWN = 2
    FENCED = 3
    NO_LEDGER = 4
    NOT_ENOUGH_BOOKIES = 5
    BAD_VERSION = 6
    NO_RECORD = 7
    RECORD_EXISTS = 8
    NO_ENTRY = 9
    NOT_EMPTY = 10
    REFUSED = 11
    LEDGER_CLOSED = 12
    NO_HANDLE = 13
    DAMAGED = 14


class Refused(Exception):
    """A condition did not hold: the caller knows what that means."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


_ERRORS: Mapping[int, type[TierlogError]] = {
    Status.UNAVAILABLE: Unavailable,
    Status.UNKNOWN: OutcomeUnknown,
    Status.FENCED: LedgerFenced,
    Status.NO_LEDGER: NoSuchLedger,
    Status.NOT_ENOUGH_BOOKIES: NotEnoughBookies,
    Status.NO_ENTRY: NoSuchEntry,
    Status.NOT_EMPTY: InvalidArgument,
    Status.REFUSED: Unsupported,
    # Another process closed it, or an append before this one failed.
    Status.LEDGER_CLOSED: OutcomeUnknown,
    Status.NO_HANDLE: Unavailable,
    Status.DAMAGED: DataCorruption,
}


def encode_request(number: int, operation: Operation, size: int) -> bytes:
    """The head of a request whose arguments have ``size`` bytes."""
    return _REQUEST.pack(_COUNTED + size, number, operation)


def check_hello(data: bytes) -> None:
    """Raises ``Unavailable`` if no sidecar of this protocol has begun."""
    if data != HELLO:
        raise Unavailable(
            f"the sidecar began with {data.hex()}, not {HELLO.hex()}: install it again "
            f"(tierlog bookkeeper install)"
        )


def reply_size(length: int) -> int:
    """The bytes of a reply's result. Raises ``DecodeError``."""
    if not _COUNTED <= length <= REPLY_BYTES_MAX:
        raise DecodeError(f"a reply of {length} bytes")
    return length - _COUNTED


def failure_of(status: int, message: str) -> Exception:
    """What a reply with this status raises."""
    if status in {Status.BAD_VERSION, Status.NO_RECORD, Status.RECORD_EXISTS}:
        return Refused(Status(status), message)
    return _ERRORS.get(status, OutcomeUnknown)(message)


# --- arguments and results ------------------------------------------------------------------------


def text(value: str) -> bytes:
    return value.encode()


def put_map(encoder: Encoder, values: Mapping[str, bytes]) -> Encoder:
    encoder.u32(len(values))
    for name, value in values.items():
        encoder.blob(text(name)).blob(value)
    return encoder


def take_description(result: Decoder) -> LedgerDescription:
    last, length, closed = result.i64(), result.i64(), result.u32()
    count = result.u32()
    metadata = {result.blob().decode(): result.blob() for _ in range(count)}
    result.finish()
    return LedgerDescription(last, length, bool(closed), metadata)
