"""The histories of a container: each recovery from long-term storage alone begins one, and what was acked
after the cycle that it recovered is lost (rules R8 to R10). Pure.

A history is named by the epoch of the recovery that began it; the first one is 0. The record of the present
history lists all of them. A segment that changed in a later history than the one it was created in has, for
each such history, the length that it had when the history began: up to there a client that knew the one
before knows the same bytes. Without an entry it has not changed since, so that length is its own.

The record also has the **ended logs** of the chain: of each log that a recovery took the place of, its id,
the number of its last element, and the epoch of the recovery. So elements are known to be of this store's
history after they are deleted.

Content of the record ``p:``: ``version u8 = 1``, and the epochs of recoveries, ascending, each ``u64``. With
ended logs: ``version u8 = 2, count u32`` of the epochs, the epochs, and of each ended log, from old to new,
``id 16 bytes, number u64, epoch u64``."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import HistoryLost
from ...storage_backends.base.ids import epoch_of

if TYPE_CHECKING:
    from .segments import SegmentState

_EPOCHS_ONLY, _WITH_LOGS = b"\x01", b"\x02"
_EPOCH_BYTES = 8
_COUNT = struct.Struct(">I")
_LOG = struct.Struct(">16sQQ")


class EndedLog(NamedTuple):
    """A log that a recovery took the place of."""

    log: bytes
    n: int
    """The number of its last element."""
    until: int
    """The epoch of the recovery: that of the log's elements is lower. A container that is recovered alone
    goes on with the same id (rule R11)."""


class Histories(NamedTuple):
    """The content of the record ``p:``."""

    epochs: tuple[int, ...] = ()
    ended: tuple[EndedLog, ...] = ()


def encode_histories(histories: Histories) -> bytes:
    epochs, ended = histories
    packed = struct.pack(f">{len(epochs)}Q", *epochs)
    if not ended:
        return _EPOCHS_ONLY + packed
    return _WITH_LOGS + _COUNT.pack(len(epochs)) + packed + b"".join(_LOG.pack(*each) for each in ended)


def decode_histories(content: bytes) -> Histories:
    """Raises ``DecodeError``."""
    version, at = content[:1], 1
    count, rest = divmod(len(content) - at, _EPOCH_BYTES)
    ended: tuple[EndedLog, ...] = ()
    if version == _WITH_LOGS and len(content) >= at + _COUNT.size:
        [count] = _COUNT.unpack_from(content, at)
        at += _COUNT.size
        logs = content[at + count * _EPOCH_BYTES :]
        rest = len(logs) % _LOG.size
        # One form for each content.
        rest = rest or not logs
        ended = () if rest else tuple(EndedLog(*each) for each in _LOG.iter_unpack(logs))
    elif version != _EPOCHS_ONLY:
        rest = 1
    if rest:
        raise DecodeError(f"the record of histories has {len(content)} bytes and begins with {version!r}")

    epochs: tuple[int, ...] = struct.unpack_from(f">{count}Q", content, at)
    if any(first >= second for first, second in pairwise(epochs)):
        raise DecodeError(f"the recoveries {epochs} are out of order")
    return Histories(epochs, ended)


def current(epochs: Sequence[int]) -> int:
    """The present history."""
    return epochs[-1] if epochs else 0


def is_recovered(epochs: Sequence[int], sid: int) -> bool:
    """Whether the segment was created before the present history: then clients may know more of it than is
    left."""
    return epoch_of(sid) < current(epochs)


def note_change(epochs: Sequence[int], segment: SegmentState) -> None:
    """A segment is about to change in the present history: keep the length that it has until then."""
    known, now = segment.histories, epochs[-1]
    if epoch_of(segment.sid) >= now or (known and known[-1][0] == now):
        return

    # It did not grow in the history before: a client of that one knows as much as one of earlier ones.
    if known and known[-1][1] == segment.length:
        known = known[:-1]
    segment.histories = (*known, (now, segment.length))


def common_length(epochs: Sequence[int], segment: SegmentState, given: int) -> int | None:
    """Up to where a client that knew history ``given`` knows the same bytes of the segment; None if that is
    the present one, in which nothing is lost."""
    if given == current(epochs):
        return None

    # R10: of another store, or of a history that was lost with its recovery: nothing is known of it.
    if given not in (0, *epochs) or given > current(epochs):
        return 0

    following = next(epoch for epoch in epochs if epoch > given)
    if epoch_of(segment.sid) >= following:
        return 0
    return next((length for epoch, length in segment.histories if epoch > given), segment.length)


def recovered_length(epochs: Sequence[int], segment: SegmentState) -> int:
    """What the segment had when the present history began."""
    if not is_recovered(epochs, segment.sid):
        return 0
    known = segment.histories
    return known[-1][1] if known and known[-1][0] == current(epochs) else segment.length


def check_position(
    epochs: Sequence[int], segment: SegmentState, position: int, length: int, given: int | None
) -> None:
    """Raise ``HistoryLost`` if the caller got ``position`` from a history in which the segment had other
    bytes there. ``given`` is the history that it is of, None if the caller does not say; ``length`` is where
    the segment ends, as the caller can know it."""
    if given is not None:
        known = common_length(epochs, segment, given)
        if known is not None and position > known:
            raise _lost(epochs, segment, position, known)

    # R10: no answer of this history named it.
    elif position > length and is_recovered(epochs, segment.sid):
        raise _lost(epochs, segment, position, recovered_length(epochs, segment))


def _lost(epochs: Sequence[int], segment: SegmentState, position: int, known: int) -> HistoryLost:
    return HistoryLost(
        f"offset {position} of {segment.name!r} is of a history that is lost: the store was recovered from "
        f"long-term storage, which had the bytes up to {known}. Others may follow them now: forget what you "
        f"know of later ones, and go on from {known} with history={current(epochs)}",
        segment=segment.name,
        history=current(epochs),
        recovered_length=known,
    )
