"""Events in a segment's bytes: each one is framed as its length (4 bytes, big-endian) and its bytes.

Public as ``tierlog.events``: framing of plain bytes, of bytes that arrive in pieces, and of Arrow columns. A
store knows nothing of it: a segment is bytes.

A *boundary* is an offset at which a frame begins, or the segment's end. Writers append whole frames, so every
append begins at a boundary and a segment's length always is one; readers can divide a segment where appends
begin. The bytes themselves do not show boundaries: a reader that starts elsewhere reads nonsense, which is
detected only where it finds a length that no event can have.

``pyarrow`` and ``numpy`` (the extra ``spark``) are imported by the functions that need them. Arrow columns
are framed and decoded without touching single events in Python, except to find the boundaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from ..storage_backends.base.checksum import Buffer
from ..storage_backends.base.codec import DecodeError
from ..storage_backends.base.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

HEADER_BYTES = 4
EVENT_BYTES_MAX = (32 << 20) - HEADER_BYTES
"""Bytes; a frame fits into the largest append that a store can be configured to take."""
_LENGTH = Struct(">I")
_EQUAL_MIN = 16
"""The least number of events for which checking for equal lengths pays off."""
_SHORT_BYTES = 256
_SAMPLE_BYTES = 16 << 10
"""Looking at every byte is faster than going from header to header where events are shorter, on average; the
sample tells."""
_REPAIRS_MAX = 12
"""How often events are added that follow each other unseen: of 256 bytes or more, which half of them are."""
_PLACES = 0x0001020304050607
"""Multiplied by a word in which one byte is 1, it has that byte's place in its highest byte."""


class Event(NamedTuple):
    """One event, and the offset at which its frame begins."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The boundary after it."""
        return self.offset + HEADER_BYTES + len(self.data)


def encode(events: Iterable[Buffer]) -> bytes:
    """The frames of ``events``, to be appended in one call.

    Raises ``InvalidArgument`` if an event has more than ``EVENT_BYTES_MAX`` bytes.
    """
    parts: list[Buffer] = []
    for number, event in enumerate(events):
        # `len` of a view counts items, which may have several bytes.
        size = memoryview(event).nbytes
        if size > EVENT_BYTES_MAX:
            raise InvalidArgument(f"event {number} has {size} bytes; an event has at most {EVENT_BYTES_MAX}")

        parts += (_LENGTH.pack(size), event)
    return b"".join(parts)


def decode(data: Buffer) -> list[bytes]:
    """The events in ``data``, which starts at a boundary.

    Raises ``DecodeError`` if it ends inside a frame, or if an event's length is impossible.
    """
    found = boundaries(data)
    if found[-1] != len(data):
        raise DecodeError(f"the {len(data) - found[-1]} bytes at {found[-1]} are not a whole frame")

    view = memoryview(data)
    return [bytes(view[begin + HEADER_BYTES : end]) for begin, end in pairwise(found)]


def iterate(data: Buffer, offset: int = 0) -> Iterator[Event]:
    """The events of the whole frames at the beginning of ``data``; ``offset`` is that of its first byte.

    An incomplete frame at the end is left out: prepend the bytes after the last event's ``end`` to the next
    block. Raises ``DecodeError`` if an event's length is impossible."""
    view = memoryview(data)
    found = boundaries(data)
    for begin, end in pairwise(found):
        yield Event(offset + begin, bytes(view[begin + HEADER_BYTES : end]))


def boundaries(data: Buffer) -> Sequence[int]:
    """The boundaries of the whole frames at the beginning of ``data``: n + 1 offsets for n frames.

    A ``range`` if all frames have the same length, which is found without reading every header. Raises
    ``DecodeError`` if an event's length is impossible.
    """
    return _equal_boundaries(data) or _walked_boundaries(data)


def _equal_boundaries(data: Buffer) -> range | None:
    if len(data) < HEADER_BYTES:
        return None

    step = HEADER_BYTES + int(_LENGTH.unpack_from(data)[0])
    count, rest = divmod(len(data), step)
    end = count * step
    if step - HEADER_BYTES > EVENT_BYTES_MAX or count < _EQUAL_MIN:
        return None

    view = memoryview(data)
    if view[step : step + HEADER_BYTES] != view[:HEADER_BYTES]:
        return None

    # One byte of all headers at a time, compared in C: no header is decoded in Python.
    if any(view[at:end:step].tobytes() != bytes(view[at : at + 1]) * count for at in range(HEADER_BYTES)):
        return None

    if (
        rest >= HEADER_BYTES
        and not rest - HEADER_BYTES < _LENGTH.unpack_from(data, end)[0] <= EVENT_BYTES_MAX
    ):
        return None  # a shorter frame follows, or no frame at all

    return range(0, end + 1, step)


def _walked_boundaries(data: Buffer) -> list[int]:
    # Once for each event: nothing in this loop can be left out.
    position, last = 0, len(data) - HEADER_BYTES
    found: list[int] = []
    add, unpack = found.append, _LENGTH.unpack_from
    while position <= last:
        add(position)
        position += HEADER_BYTES + unpack(data, position)[0]
    # An impossible length passes the end of less data than the largest event has, and so ends the loop.
    checked = found if len(data) > EVENT_BYTES_MAX else found[-1:]
    for begin, end in pairwise((*checked, position)):
        if end - begin > HEADER_BYTES + EVENT_BYTES_MAX:
            raise _no_frame(begin, end - begin - HEADER_BYTES)

    if position <= len(data):
        found.append(position)
    return found


def frame_bytes(header: Buffer) -> int:
    """The length in bytes of the frame with this header, header included."""
    if len(header) != HEADER_BYTES:
        raise DecodeError(f"a frame's header has {HEADER_BYTES} bytes, not {len(header)}")

    [size] = _LENGTH.unpack(header)
    if size > EVENT_BYTES_MAX:
        raise _no_frame(0, size)

    return HEADER_BYTES + int(size)


def _no_frame(position: int, size: int) -> DecodeError:
    return DecodeError(f"no frame begins at {position}: {size} is not the length of an event")


# --- Arrow columns ------------------------------------------------------------------------------


def scan_boundaries(data: Buffer) -> Sequence[int]:
    """What ``boundaries`` returns, with numpy: faster for many short events."""
    return _equal_boundaries(data) or _scanned_boundaries(data) or _walked_boundaries(data)


def _scanned_boundaries(data: Buffer) -> Sequence[int] | None:
    sample = _scan(memoryview(data)[:_SAMPLE_BYTES])
    if sample is None or sample[-1] > len(sample) * _SHORT_BYTES:
        return None

    return _scan(data)


def _scan(data: Buffer) -> Sequence[int] | None:
    """The headers of events below 64 KiB begin with two zero bytes, those below 256 bytes with three, and
    text has none. So each aligned pair of zeros is taken for a part of a header: that finds all short events,
    and half of the others. Then all are checked at once: an event must end where the next one begins, or one
    begins there that was not found. None if it ends behind that: zeros may be a part of an event."""
    import numpy as np

    values = np.frombuffer(data, np.uint8)
    last = len(values) - HEADER_BYTES
    if last < 0 or values[:2].any():
        return None

    starts = _zeros(values)
    if not len(starts) or starts[0]:
        starts = np.insert(starts, 0, 0)
    for _ in range(_REPAIRS_MAX):
        starts = starts[: starts.searchsorted(last, "right")]
        ends = values.take(starts + 2).astype(np.int64)
        ends <<= 8
        ends += values.take(starts + 3)
        ends += starts
        ends += HEADER_BYTES
        gaps = np.flatnonzero(ends[:-1] != starts[1:])
        if not len(gaps) and ends[-1] > last:
            bounds = starts if ends[-1] > len(values) else np.append(starts, ends[-1:])
            return bounds.data

        if (ends[:-1] > starts[1:]).any():
            return None

        if ends[-1] <= last:
            gaps = np.append(gaps, len(starts) - 1)
        found = ends[gaps]
        if values.take(found).any() or values.take(found + 1).any():
            return None

        starts = np.insert(starts, gaps + 1, found)
    return None


def _zeros(values: np.typing.NDArray[np.uint8]) -> np.typing.NDArray[np.int64]:
    """Where zeros begin that have an aligned pair among them; only one may precede the pair."""
    import numpy as np

    # Aligned in memory: others are copied before they are compared.
    skipped = values.__array_interface__["data"][0] & 1
    count = (len(values) - skipped) // 2
    # Whole words of 8 pairs, of which most have no header: looking at words is faster.
    pairs = np.empty(-(-count // 8) * 8, np.bool_)
    pairs[count:] = False
    np.equal(values[skipped : skipped + 2 * count].view(np.uint16), 0, out=pairs[:count])
    words = pairs.view("<u8")
    starts = np.flatnonzero(words != 0)
    found = words.take(starts)
    if (found & (found - np.uint64(1))).any():
        starts = np.flatnonzero(pairs)  # Several in a word: frames have less than 16 bytes.
    else:
        found *= np.uint64(_PLACES)
        found >>= np.uint64(56)
        starts <<= 3
        starts += found.view(np.int64)
    starts <<= 1
    starts += skipped
    inner = starts[starts.searchsorted(1) :]
    inner -= values.take(inner - 1) == 0
    return starts


class Frames(NamedTuple):
    """The frames of one column: their bytes, and the end of each frame in them."""

    data: memoryview
    ends: Sequence[int]


def encode_arrow(column: pa.Array) -> Frames:
    """The frames of a column of binary or string values.

    Raises ``InvalidArgument`` for another type, for nulls, and for events above ``EVENT_BYTES_MAX``.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _as_binary(column)
    if not len(values):
        return Frames(memoryview(b""), [])

    sizes = pc.binary_length(values).to_numpy(zero_copy_only=False)
    if (largest := int(sizes.max())) > EVENT_BYTES_MAX:
        raise InvalidArgument(
            f"the event in row {int(sizes.argmax())} has {largest} bytes; an event has at most "
            f"{EVENT_BYTES_MAX}"
        )

    # Arrow puts room for a header before each value, and the buffer of the result's values is the frames. Of
    # headers only those bytes are written that are not zero in all of them.
    framed = pc.binary_replace_slice(values, 0, 0, bytes(HEADER_BYTES))
    _, offsets, data = framed.buffers()
    kind = np.int64 if pa.types.is_large_binary(framed.type) else np.int32
    bounds = np.frombuffer(offsets, kind)[framed.offset : framed.offset + len(framed) + 1].astype(np.int64)
    written, begins = np.frombuffer(data, np.uint8), bounds[:-1]
    for place in range(HEADER_BYTES):
        shift = 8 * (HEADER_BYTES - 1 - place)
        if largest >> shift:
            written[begins + place] = sizes >> shift
    # A view, because few of the ends are looked at: no Python integer for each row.
    ends = (bounds[1:] - bounds[0]).data
    return Frames(memoryview(data)[int(bounds[0]) : int(bounds[-1])], ends)


def _as_binary(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    kind = column.type
    is_large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not is_large and not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        raise InvalidArgument(f"events are a column of binary or string values, not of {kind}")

    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise InvalidArgument(
            f"{column.null_count} of {len(column)} events are null, the first in row {row}: filter them, or "
            f"replace them"
        )

    # From string this copies nothing: both are offsets and bytes.
    return column.cast(pa.large_binary() if is_large else pa.binary())


def decode_arrow(data: Buffer, boundaries: Sequence[int]) -> pa.BinaryArray:
    """The events of ``data`` as a column, at most 2 GiB; ``boundaries`` come from the function of that
    name."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(boundaries, range) and boundaries.start == 0:
        return _equal_events(data, boundaries)

    # The frames are a column over the same bytes; Arrow copies each one without its header.
    count = len(boundaries) - 1
    bounds = pa.py_buffer(np.asarray(boundaries, np.int32))
    frames = pa.BinaryArray.from_buffers(pa.binary(), count, [None, bounds, pa.py_buffer(data)])
    return pc.binary_slice(frames, HEADER_BYTES, HEADER_BYTES + EVENT_BYTES_MAX)


# ``pa.array`` and ``pa.repeat`` import pandas, which takes a new Python worker longer than most tasks.


def integers(values: np.typing.NDArray[np.int64]) -> pa.Int64Array:
    """The same numbers as a column."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def repeated(text: str, count: int) -> pa.StringArray:
    """A column of the same text. Raises ``InvalidArgument`` if it does not fit into one."""
    import numpy as np
    import pyarrow as pa

    value = text.encode()
    if len(value) * count >= 1 << 31:
        raise InvalidArgument(
            f"{count} names of {len(value)} bytes do not fit into one batch of Spark: lower readBytes, or "
            f"set includeMetadata to false"
        )

    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(value))
    return pa.StringArray.from_buffers(count, pa.py_buffer(bounds), pa.py_buffer(value * count))


def _equal_events(data: Buffer, boundaries: range) -> pa.BinaryArray:
    """The same for frames of equal length, which form a table whose first columns are the headers."""
    import numpy as np
    import pyarrow as pa

    count, step = len(boundaries) - 1, boundaries.step
    table = np.frombuffer(data, np.uint8, count * step).reshape(count, step)
    values = np.array(table[:, HEADER_BYTES:])  # a copy: the caller's buffer may be used again
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(step - HEADER_BYTES)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(values)])
