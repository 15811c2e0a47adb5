"""The decoders of sorted runs: blocks, tail, and entries of the manifest; also behind right checksums."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from fuzz.file_targets import REFUSED
from fuzz.target import Target
from support.sorted_runs import encode
from tierlog.actors.container import ended_rows
from tierlog.actors.container.attribute_rows import attributes_prefix
from tierlog.actors.container.attributes import decode_attribute
from tierlog.actors.container.left_rows import mark_key, marked_sid
from tierlog.actors.container.lost_histories import (
    EndedLog,
    Histories,
    decode_histories,
    encode_histories,
)
from tierlog.actors.container.segment_rows import (
    NAME_PREFIX,
    encode_image_row,
    load_of_row,
    name_of_key,
    name_row,
    sid_of_row,
)
from tierlog.actors.container.table_pages import Position
from tierlog.actors.container.table_runs import epoch_of_copy
from tierlog.actors.container.writer_rows import decode_writer
from tierlog.actors.gateway.wire.bodies import AttributeValues, attribute_id
from tierlog.journal.operations.transaction_image import (
    TransactionImage,
    TransactionStatus,
    encode_transaction,
)
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import DataCorruption, InvalidArgument, StoreMismatch, TableConflict
from tierlog.storage_backends.sorted_runs.block import (
    BlockBuilder,
    check_block,
    find_in_block,
    rows_of_block,
)
from tierlog.storage_backends.sorted_runs.part_checksum import part_checksum
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.tail import decode_tail
from tierlog.storage_backends.sorted_runs.trailer import Trailer

_ROWS = [Row(b"key/%03d" % n, 7 + n, None if n % 4 == 0 else b"v" * n) for n in range(20)]
_NAME = "runs/1"
_RUN, _DATA = encode(_ROWS, name=_NAME)
_TAIL = _DATA[-_RUN.tail_length :]
_BLOCKS_LENGTH = _RUN.length - _RUN.tail_length
_TRAILER, _TRAILER_LENGTH = Trailer.decode(_DATA, _NAME, _RUN.length)
_ENTRY = RunEntry.of(_RUN, 3, 4)


_OFFSET = 7


def _sealed(part: bytes, offset: int) -> bytes:
    """With a right checksum behind it."""
    return part + part_checksum(part, _NAME, offset).to_bytes(4, "big")


def _block(rows: list[Row]) -> bytes:
    builder = BlockBuilder()
    for row in rows:
        builder.add(*row)
    return builder.finish(_NAME, _OFFSET)


def _decode_block(block: bytes) -> list[Row]:
    check_block(block, _NAME, _OFFSET)
    return list(rows_of_block(block))


def _decode_block_body(body: bytes) -> list[Row]:
    """Also looks up keys, which follows restart points."""
    block = _sealed(body, _OFFSET)
    rows = _decode_block(block)
    for key in (b"", b"key/011", b"key/011x", b"\xff"):
        find_in_block(block, key)
    return rows


def _decode_tail(data: bytes) -> list[object]:
    tail = decode_tail(data, _NAME, _BLOCKS_LENGTH + len(data))
    for row in _ROWS:
        tail.find_block(row.key)
    return list(astuple(tail))


def _decode_trailer_body(body: bytes) -> Trailer:
    offset = _RUN.length - _TRAILER_LENGTH
    run_length = offset + len(body) + 4
    trailer, length = Trailer.decode(_sealed(body, offset), _NAME, run_length)
    if length != len(body) + 4:
        raise DecodeError("bytes before the trailer")
    return trailer


def _decode_image_row(data: bytes) -> tuple[int, bytes, bytes] | None:
    load = load_of_row(Row(b"g:1", 1, data))
    return load and (load.record_version, load.record, load.image)


def _encode_image_row(row: tuple[int, bytes, bytes] | None) -> bytes:
    assert row is not None
    return encode_image_row(row[2], *row[:2])


def _decode_name(data: bytes) -> tuple[str, int]:
    row = Row(NAME_PREFIX + data[:-8], 1, data[-8:])
    sid = sid_of_row(row)
    assert sid is not None
    return name_of_key(row.key), sid


def _encode_name(named: tuple[str, int]) -> bytes:
    row = name_row(named[0], 1, named[1])
    return row.key[len(NAME_PREFIX) :] + (row.value or b"")


_LISTING = Position("app/t")
_POSITION = Position("app/t", None, 7 << 32 | 3, 5, 9, b"key\xff")

RUN_TARGETS = (
    Target(
        "row of a writer",
        lambda data: decode_writer(f"y:{7:016x}:{data[:4].decode('latin-1')}", data[4:]),
        [b"7731", b"7731" + bytes(24)],
        errors=(DataCorruption,),
    ),
    Target(
        "mark of a removed segment",
        marked_sid,
        [mark_key(7 << 32 | 3)],
        encode=mark_key,
        canonical=False,
        values=st.integers(0, (1 << 64) - 1),
    ),
    Target(
        "token of a page",
        lambda data: _LISTING.after(data.decode("latin-1")),
        [_POSITION.encode().encode()],
        errors=(InvalidArgument,),
        encode=lambda position: position.encode().encode(),
        canonical=False,
    ),
    Target(
        "key of a conflict",
        lambda data: TableConflict("", key_hex=data.decode("latin-1"), expected=1, present=2).key,
        [b"6b00"],
        errors=(),
        hostile=[b"6", b"xx"],
    ),
    Target(
        "row of an image",
        _decode_image_row,
        [_encode_image_row((7, b"record", b"image"))],
        encode=_encode_image_row,
        values=st.tuples(st.integers(1, (1 << 64) - 1), st.binary(max_size=20), st.binary(max_size=20)),
    ),
    Target(
        "row of a name",
        _decode_name,
        [_encode_name(("app/s", 7 << 32 | 3))],
        encode=_encode_name,
        values=st.tuples(st.text(max_size=20), st.integers(0, (1 << 64) - 1)),
    ),
    Target(
        "row of an attribute",
        lambda data: decode_attribute(Row(attributes_prefix(7) + data[:-8], 1, data[-8:])),
        [b":txn" + bytes(8), b"#" + b"0f" * 16 + bytes(8)],
        errors=(DataCorruption,),
    ),
    Target(
        "row of an ended transaction",
        lambda data: ended_rows.ended_of_row(Row(ended_rows.ended_key("app/s", "t"), 1, data)),
        [encode_transaction(TransactionImage(7, "app/s", "t", TransactionStatus.ABORTED, None, 0))],
        encode=encode_transaction,
    ),
    Target(
        "record of histories",
        decode_histories,
        [
            encode_histories(Histories()),
            encode_histories(Histories((1 << 20, 1 << 21))),
            encode_histories(Histories((1 << 20,), (EndedLog(b"l" * 16, 7, 1 << 20),))),
        ],
        encode=encode_histories,
        values=st.builds(
            Histories,
            st.sets(st.integers(0, (1 << 64) - 1), max_size=3).map(lambda epochs: tuple(sorted(epochs))),
            st.lists(
                st.builds(
                    EndedLog,
                    st.binary(min_size=16, max_size=16),
                    st.integers(0, (1 << 64) - 1),
                    st.integers(0, (1 << 64) - 1),
                ),
                max_size=3,
            ).map(tuple),
        ),
        hostile=[
            b"",
            b"\x01" + bytes(7),
            encode_histories(Histories((2, 1))),
            b"\x02" + bytes(3),
            b"\x02" + bytes(4),
            b"\x02\xff\xff\xff\xff" + bytes(24),
        ],
    ),
    Target(
        "place in a listing of transactions",
        lambda data: ended_rows.split_key(b"t:" + data),
        [b"app/s\0t", b"app/"],
    ),
    Target(
        "end of a transaction in the index",
        ended_rows.end_of_key,
        [ended_rows.index_key(7, "app/s", "t")],
        hostile=[b"h:" + b"0" * 16 + b"\xff"],
    ),
    Target(
        "id of an attribute in a request",
        lambda data: attribute_id(data.decode("latin-1")),
        [b"0f" * 16],
        errors=(InvalidArgument,),
        hostile=[b"", b" " * 32, b"0F" * 16],
    ),
    Target(
        "attributes in an answer",
        lambda data: AttributeValues({}, {data.decode("latin-1"): 1}).values(),
        [b"0f" * 16],
        errors=(ValueError,),
    ),
    Target(
        "name of a local copy",
        lambda data: epoch_of_copy(data.decode("latin-1")),
        [b"_system+containers+0000+runs+0000000000000007-0000000000000003-id.1234abcd.run"],
        errors=(),
        hostile=[b"", b"+0x7-", b".tmp-+7-0"],
    ),
    Target("run block", _decode_block, [_block(_ROWS), _block(_ROWS[:1])], checksummed=True, encode=_block),
    Target(
        "run block behind a checksum",
        _decode_block_body,
        [_block(_ROWS)[:-4], _block(_ROWS[:1])[:-4]],
        encode=lambda rows: _block(rows)[:-4],
        canonical=False,
    ),
    Target("run tail", _decode_tail, [_TAIL], errors=REFUSED, checksummed=True),
    Target(
        "run trailer behind a checksum",
        _decode_trailer_body,
        [_TRAILER.encode(_NAME, 0)[:-4]],
        errors=(DecodeError, StoreMismatch),
        encode=lambda trailer: trailer.encode(_NAME, 0)[:-4],
    ),
    Target(
        "run entry",
        RunEntry.decode,
        [_ENTRY.encode(), replace(_ENTRY, extra=b"newer").encode()],
        encode=RunEntry.encode,
        values=st.builds(
            replace,
            st.just(_ENTRY),
            name=st.text(min_size=1, max_size=20),
            crc=st.integers(0, (1 << 32) - 1),
            extra=st.binary(max_size=9),
        ),
    ),
)
