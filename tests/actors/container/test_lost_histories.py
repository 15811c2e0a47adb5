"""Which positions two histories have in common, for any number of recoveries (rules R8, R10)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog import HistoryLost
from tierlog.actors.container.lost_histories import (
    EndedLog,
    Histories,
    check_position,
    common_length,
    decode_histories,
    encode_histories,
    note_change,
    recovered_length,
)
from tierlog.actors.container.segments import SegmentState
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.ids import segment_id

_GOLDEN = Path(__file__).parents[2] / "golden"
GOLDEN_1, GOLDEN = (bytes.fromhex((_GOLDEN / f"histories_v{n}.hex").read_text()) for n in (1, 2))


def segment(length: int, epoch: int = 1) -> SegmentState:
    made = SegmentState(segment_id(epoch, 1), "s", 1 << 20)
    made.length = made.durable_length = length
    return made


def test_r8_the_record_has_its_golden_bytes() -> None:
    histories = Histories(
        (1 << 20, 1 << 21), (EndedLog(bytes(range(16)), 7, 1 << 20), EndedLog(b"l" * 16, 9, 1 << 21))
    )
    assert encode_histories(histories) == GOLDEN
    assert decode_histories(GOLDEN) == histories
    # As an earlier version wrote it, and as it is without ended logs.
    assert encode_histories(Histories(histories.epochs)) == GOLDEN_1
    assert decode_histories(GOLDEN_1) == Histories(histories.epochs)


def test_r8_the_record_of_a_store_that_was_never_recovered_has_no_histories() -> None:
    assert decode_histories(b"\x01") == Histories()
    assert encode_histories(Histories()) == b"\x01"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x03",
        b"\x02",
        GOLDEN[:21],
        GOLDEN[:-1],
        GOLDEN_1[:-1],
        b"\x01" + bytes(16),
        b"\x02" + GOLDEN_1[1:],
    ],
)
def test_r8_a_damaged_record_is_refused(content: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_histories(content)


def test_r10_a_segment_that_did_not_change_since_has_all_its_bytes_in_common() -> None:
    assert common_length((100,), segment(10), 0) == 10
    assert recovered_length((100,), segment(10)) == 10


def test_r10_of_a_segment_that_was_created_since_nothing_is_in_common() -> None:
    assert common_length((100,), segment(10, epoch=100), 0) == 0
    assert common_length((100, 200), segment(10, epoch=150), 0) == 0
    assert common_length((100, 200), segment(10, epoch=150), 100) == 10


@pytest.mark.parametrize("unknown", [50, 150, 300])
def test_r10_nothing_is_in_common_with_a_history_that_is_not_known(unknown: int) -> None:
    assert common_length((100, 200), segment(10), unknown) == 0
    assert common_length((), segment(10), unknown) == 0


def test_r10_without_a_history_only_a_position_past_the_end_of_a_recovered_segment_is_lost() -> None:
    check_position((100,), segment(10), 10, 10, None)
    check_position((100,), segment(10, epoch=100), 11, 10, None)
    check_position((), segment(10), 11, 10, None)
    with pytest.raises(HistoryLost) as lost:
        check_position((100,), segment(10), 11, 10, None)
    assert (lost.value.history, lost.value.recovered_length) == (100, 10)


steps = st.lists(st.integers(0, 3), max_size=12)


@given(histories=st.lists(steps, min_size=1, max_size=4), kept=st.lists(st.integers(0, 40), max_size=4))
def test_r10_two_histories_have_in_common_what_every_recovery_between_them_kept(
    histories: list[list[int]], kept: list[int]
) -> None:
    """The segment grows in each history; each recovery takes it back to a length that it had in that history.
    A second recovery before a change leaves no trace of the first one in the segment."""
    epochs: tuple[int, ...] = ()
    found = segment(0)
    begun: list[int] = []
    for number, grown in enumerate(histories):
        states = [(found.length, found.histories)]
        for size in grown:
            if epochs:
                note_change(epochs, found)
            found.length += size
            states.append((found.length, found.histories))
        if number < len(histories) - 1:
            choice = kept[number] if number < len(kept) else 0
            found.length, found.histories = states[choice % len(states)]
            epochs = (*epochs, 100 * (number + 1))
            begun.append(found.length)
    for number in range(len(epochs)):
        known = common_length(epochs, found, epochs[number - 1] if number else 0)
        assert known == min(begun[number:])
    assert common_length(epochs, found, epochs[-1] if epochs else 0) is None
