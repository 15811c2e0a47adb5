"""Transactions as rows of the system table (rule M21). Sync.

Key of a row: ``t:``, the target's name, a zero byte, and the transaction's id; the value is its image. Open
ones are in memory as well, and their rows are for a boot from long-term storage alone. Each end has a row of
the index besides, without a value: ``h:``, the version of the end in hex, and the rest of
the key. So those that ended first are found without looking at the others. Both rows have the version of the
end.

Ends that a checkpoint of an earlier version had have no version of their own: in the index they are the first
ones, whatever the version of their rows, because recovery may put the rows more than once."""

from __future__ import annotations

from ...journal.operations.ended_transactions import TransactionEnd
from ...journal.operations.transaction_image import (
    TransactionImage,
    TransactionStatus,
    decode_transaction,
    encode_transaction,
)
from ...storage_backends.base.codec import DecodeError, hex_number
from ...storage_backends.sorted_runs.rows import Row

TRANSACTION_PREFIX, INDEX_PREFIX = b"t:", b"h:"
_SEPARATOR = "\0"
_VERSION_DIGITS = 16
_INDEX_HEAD = len(INDEX_PREFIX) + _VERSION_DIGITS


def ended_prefix(target: str) -> bytes:
    """Before the transactions of all targets whose names begin with ``target``."""
    return TRANSACTION_PREFIX + target.encode("utf-8", "surrogatepass")


def ended_key(target: str, transaction: str) -> bytes:
    return ended_prefix(target) + f"{_SEPARATOR}{transaction}".encode()


def index_start(version: int) -> bytes:
    """Before the ends of that version and of later ones."""
    return b"%b%016x" % (INDEX_PREFIX, version)


def index_key(version: int, target: str, transaction: str) -> bytes:
    return index_start(version) + f"{target}{_SEPARATOR}{transaction}".encode()


def ended_rows(record: TransactionImage, version: int, *, is_brought_over: bool = False) -> tuple[Row, Row]:
    """The rows of a transaction that ends with ``version``, or was brought over from a checkpoint then."""
    return (
        Row(ended_key(record.target, record.id), version, encode_transaction(record)),
        Row(index_key(0 if is_brought_over else version, record.target, record.id), version, b""),
    )


def open_row(record: TransactionImage, version: int) -> Row:
    return Row(ended_key(record.target, record.id), version, encode_transaction(record))


def ended_of_row(row: Row | None) -> TransactionImage | None:
    """None for an open transaction, for a tombstone, and without a row. Raises ``DecodeError``."""
    record = transaction_of_row(row)
    return None if record is None or record.status is TransactionStatus.OPEN else record


def transaction_of_row(row: Row | None) -> TransactionImage | None:
    """None for a tombstone, and without a row. Raises ``DecodeError``."""
    if row is None or row.value is None:
        return None

    record = decode_transaction(row.value)
    if ended_key(record.target, record.id) != row.key:
        raise DecodeError(f"the row of a transaction has another one: {record}")
    return record


def split_key(key: bytes) -> tuple[str, str]:
    """Target and id in the key of an ended transaction's row; the id is empty in a prefix. Raises
    ``DecodeError``."""
    return _split(key[len(TRANSACTION_PREFIX) :])


def end_of_key(key: bytes) -> TransactionEnd:
    """The end in a key of the index. Raises ``DecodeError``."""
    version = hex_number(key[len(INDEX_PREFIX) : _INDEX_HEAD].decode("ascii", "replace"))
    return TransactionEnd(version, True, *_split(key[_INDEX_HEAD:]))


def _split(key: bytes) -> tuple[str, str]:
    try:
        target, _, transaction = key.decode("utf-8", "surrogatepass").partition(_SEPARATOR)
    except UnicodeDecodeError as error:
        raise DecodeError(f"the key of an ended transaction is no text: {error}") from error
    return target, transaction
