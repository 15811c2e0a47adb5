"""The operations of the log: permanent numbers, golden bytes, round trips, and decoders that either decode or
raise ``DecodeError``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.operations import (
    IMAGE,
    IMAGE_AFTER_RECOVERY,
    SAMPLES,
    TABLE_IMAGE,
    TRANSACTION,
    operations,
)
from tierlog.journal.operations.append import Append, encode_head
from tierlog.journal.operations.barrier import Barrier
from tierlog.journal.operations.operation import (
    HEAD,
    NUMBERS,
    Operation,
    decode_operations,
    encode_operation,
    register,
)
from tierlog.journal.operations.segment_image import SegmentImage, decode_image, encode_image
from tierlog.journal.operations.transaction_image import (
    decode_transaction,
    encode_transaction,
)
from tierlog.storage_backends.base.codec import DecodeError, NewerFormat

GOLDEN = Path(__file__).parents[1] / "golden" / "operations"


def decode_one(data: bytes) -> Operation:
    (op,) = decode_operations(memoryview(data), 0)
    return op


def test_a_type_number_is_never_registered_twice() -> None:
    with pytest.raises(ValueError, match="type number 1 is taken"):
        register(1, Barrier, lambda view, start, end: Barrier())


def test_every_operation_has_a_golden_sample() -> None:
    """Golden bytes make type numbers and layouts permanent: a log of today must mean the same with any later
    version."""
    assert {type(op) for op in SAMPLES.values()} == set(NUMBERS)
    assert {path.stem for path in GOLDEN.glob("*.hex")} == {
        *SAMPLES,
        "segment_image",
        "segment_image_after_recovery",
        "table_image",
        "transaction_image",
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_an_operation_has_its_golden_bytes(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())

    assert encode_operation(SAMPLES[name]) == golden
    assert decode_one(golden) == SAMPLES[name]


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("segment_image", IMAGE),
        ("segment_image_after_recovery", IMAGE_AFTER_RECOVERY),
        ("table_image", TABLE_IMAGE),
    ],
)
def test_a_segment_image_has_its_golden_bytes(name: str, image: SegmentImage) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())

    assert encode_image(image) == golden
    assert decode_image(golden) == image


def test_m14_an_image_with_unknown_flags_is_refused() -> None:
    """As code from before tables refuses theirs."""
    golden = encode_image(IMAGE)
    with pytest.raises(DecodeError, match="flags"):
        decode_image(golden[:9] + b"\x40" + golden[10:])


def test_a_transaction_image_has_its_golden_bytes() -> None:
    golden = bytes.fromhex((GOLDEN / "transaction_image.hex").read_text())

    assert encode_transaction(TRANSACTION) == golden
    assert decode_transaction(golden) == TRANSACTION


@given(operations)
def test_what_was_encoded_is_decoded(op: Operation) -> None:
    decoded = decode_one(encode_operation(op))

    assert type(decoded) is type(op)
    assert decoded == op


@given(st.lists(operations, max_size=5))
def test_operations_are_encoded_one_behind_the_other(ops: list[Operation]) -> None:
    data = b"head" + b"".join(map(encode_operation, ops))

    assert decode_operations(memoryview(data), 4) == ops


@given(st.binary(min_size=1, max_size=80), st.binary(max_size=5))
def test_the_head_of_an_append_with_its_data_behind_is_the_append(data: bytes, writer: bytes) -> None:
    op = Append(3, 5, data, writer, 4 if writer else 0, 1 if writer else 0)

    assert encode_head(op, len(data)) + data == encode_operation(op)


def test_the_data_of_a_decoded_append_is_a_view_of_the_payload() -> None:
    payload = memoryview(encode_operation(SAMPLES["append"]))
    (op,) = decode_operations(payload, 0)

    assert isinstance(op, Append)
    assert isinstance(op.data, memoryview)
    assert op.data.obj is payload.obj


def test_a_transaction_image_of_an_unknown_status_or_length_is_refused() -> None:
    golden = encode_transaction(TRANSACTION)
    status = golden.index(b"job-7") + len(b"job-7")
    with pytest.raises(DecodeError, match="TransactionStatus at .* is 9"):
        decode_transaction(golden[:status] + b"\x09" + golden[status + 1 :])

    with pytest.raises(DecodeError, match="left over"):
        decode_transaction(golden + b"\0")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_shortened_operation_is_refused(name: str) -> None:
    data = encode_operation(SAMPLES[name])
    for size in range(1, len(data)):
        with pytest.raises(DecodeError):
            decode_operations(memoryview(data[:size]), 0)


@pytest.mark.parametrize(
    "name", [name for name in SAMPLES if name not in ("append", "append_by_writer", "relog_data")]
)
def test_bytes_left_over_in_an_operation_are_refused(name: str) -> None:
    data = encode_operation(SAMPLES[name])
    longer = data[:1] + (len(data) - HEAD.size + 1).to_bytes(4, "big") + data[HEAD.size :] + b"\0"
    with pytest.raises(DecodeError, match="left over"):
        decode_operations(memoryview(longer), 0)


def test_an_unknown_type_is_refused_with_its_number() -> None:
    with pytest.raises(NewerFormat, match="type 99"):
        decode_operations(memoryview(b"\x63\0\0\0\0"), 0)


def test_an_append_does_not_decode_bytes_of_its_neighbour() -> None:
    """Its head claims a writer of 200 bytes, which only the next operation would have."""
    body = bytes(16) + b"\xc8" + b"short"
    data = (
        b"\x01" + len(body).to_bytes(4, "big") + body + encode_operation(Append(1, 2, bytes(400), b"", 0, 0))
    )
    with pytest.raises(DecodeError, match="inside its head"):
        decode_operations(memoryview(data), 0)
