"""Segment ids (rule C2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.base.ids import COUNTER_MAX, counter_of, epoch_of, segment_id

epochs = st.integers(1, (1 << 31) - 1)
counters = st.integers(1, COUNTER_MAX)


@given(epochs, counters)
def test_an_id_keeps_its_epoch_and_counter(epoch: int, counter: int) -> None:
    sid = segment_id(epoch, counter)

    assert (epoch_of(sid), counter_of(sid)) == (epoch, counter)
    assert 0 < sid < 1 << 63


@given(epochs, counters, epochs, counters)
def test_ids_of_later_owners_are_larger(
    epoch: int, counter: int, other_epoch: int, other_counter: int
) -> None:
    """No two creations share an id (C2): ids are ordered as (epoch, counter) is."""
    assert (segment_id(epoch, counter) < segment_id(other_epoch, other_counter)) == (
        (epoch, counter) < (other_epoch, other_counter)
    )


@pytest.mark.parametrize(("epoch", "counter"), [(0, 1), (1, 0), (-1, 1), (1 << 31, 1), (1, COUNTER_MAX + 1)])
def test_a_part_out_of_range_is_refused(epoch: int, counter: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        segment_id(epoch, counter)
