"""A group's payload: packed as it is built, unpacked in replay; any bytes decode or raise DecodeError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.operations import SAMPLES, operations
from tierlog.journal.group_payload import PayloadBuilder, decode_group
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.operation import Operation
from tierlog.storage_backends.base.codec import DecodeError


@given(st.integers(0, (1 << 64) - 1), st.lists(operations, max_size=6))
def test_a_group_comes_back_with_its_first_sequence(first: int, ops: list[Operation]) -> None:
    group = PayloadBuilder(first)
    for op in ops:
        group.add(op)

    payload = b"".join(group.parts)

    assert len(payload) == group.size
    assert decode_group(memoryview(payload)) == (first, ops)
    assert group.operations == ops


def test_the_data_of_an_append_is_not_copied() -> None:
    data = bytes(100)
    group = PayloadBuilder(1)
    group.add(Append(1, 0, data, b"", 0, 0))

    assert group.parts[-1] is data


def test_a_payload_without_a_sequence_is_refused() -> None:
    with pytest.raises(DecodeError, match="7 bytes"):
        decode_group(memoryview(bytes(7)))


def test_sequences_follow_from_the_position_in_the_group() -> None:
    group = PayloadBuilder(100)
    for op in SAMPLES.values():
        group.add(op)

    first, ops = decode_group(memoryview(b"".join(group.parts)))

    assert dict(enumerate(ops, first)) == dict(enumerate(SAMPLES.values(), 100))
