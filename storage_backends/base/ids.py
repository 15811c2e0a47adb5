"""Segment ids (rule C2): 64-bit integers that are never reused in a container.

The high half is the epoch of the owner that created the segment, the low half that owner's counter. A name
can be reused after a delete, an id cannot; so metadata keys, chunk names, caches and garbage never mix two
segments of one name.
"""

from __future__ import annotations

_COUNTER_BITS = 32
COUNTER_MAX = (1 << _COUNTER_BITS) - 1
EPOCH_MAX = (1 << 31) - 1
"""The highest epoch: ids are below 2^63."""


def segment_id(epoch: int, counter: int) -> int:
    """The id of the ``counter``-th segment (from 1) created by the owner with ``epoch``."""
    if not 0 < counter <= COUNTER_MAX or not 0 < epoch <= EPOCH_MAX:
        raise ValueError(f"epoch {epoch} or counter {counter} out of range")

    return epoch << _COUNTER_BITS | counter


def epoch_of(sid: int) -> int:
    return sid >> _COUNTER_BITS


def counter_of(sid: int) -> int:
    return sid & COUNTER_MAX
