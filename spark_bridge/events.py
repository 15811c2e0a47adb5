"""Events in a segment's bytes: each one a 4-byte big-endian length and then its bytes.

Owns: the framing, both ways: for plain bytes, for bytes that come in pieces, and for Arrow columns. A store
knows nothing of it: a segment is bytes. Does not own: where the bytes go or come from.

Whoever appends frames appends whole ones, so that every append begins at a **border**, where a frame begins.
Then a segment's length is a border at any moment, and readers can divide a segment where appends begin.

Nothing in the bytes says where a frame begins: a reader that begins elsewhere reads nonsense. It is refused
where it can be seen, which is at a length that no event has.

``pyarrow`` and ``numpy`` are imported by the functions that need them (the extra ``spark`` has both); an
Arrow column is framed and taken apart without touching single events in Python, except to find where the
frames begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from ..storage_backends.base.checksum import Buffer
from ..storage_backends.base.codec import DecodeError
from ..storage_backends.base.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

HEADER_BYTES = 4
EVENT_BYTES_MAX = (32 << 20) - HEADER_BYTES
"""A frame fits into the largest append that a store can be set to take."""
_LENGTH = Struct(">I")
_EQUAL_MIN = 16
"""So many events at least are worth a look at whether they are equally long."""


class Event(NamedTuple):
    """One event and where its frame begins."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The border behind it."""
        return self.offset + HEADER_BYTES + len(self.data)


def encode(events: Iterable[Buffer]) -> bytes:
    """The frames of ``events``, ready to be appended."""
    parts: list[Buffer] = []
    for number, event in enumerate(events):
        size = memoryview(event).nbytes
        if size > EVENT_BYTES_MAX:
            raise InvalidArgument(f"event {number} has {size} bytes; an event has at most {EVENT_BYTES_MAX}")

        parts += (_LENGTH.pack(size), event)
    return b"".join(parts)


def decode(data: Buffer) -> list[bytes]:
    """The events of whole frames; ``DecodeError`` if ``data`` ends inside one."""
    found = borders(data)
    if found[-1] != len(data):
        raise DecodeError(f"{len(data) - found[-1]} bytes at {found[-1]} are no whole frame")

    view = memoryview(data)
    return [bytes(view[begin + HEADER_BYTES : end]) for begin, end in pairwise(found)]


def iterate(data: Buffer, offset: int = 0) -> Iterator[Event]:
    """The events of the whole frames that ``data`` begins with; ``offset`` is that of its first byte.

    A frame that is cut off at the end is left out: put the bytes from the last event's ``end`` on before
    those that come next.
    """
    view = memoryview(data)
    found = borders(data)
    for begin, end in pairwise(found):
        yield Event(offset + begin, bytes(view[begin + HEADER_BYTES : end]))


def borders(data: Buffer) -> Sequence[int]:
    """Where the whole frames that ``data`` begins with begin, and where the last of them ends: n + 1 numbers
    for n frames.

    A ``range`` if all of them are equally long, which is found out at once; else each header is read for the
    next.
    """
    return _equal_borders(data) or _walked_borders(data)


def _equal_borders(data: Buffer) -> range | None:
    if type(data) is not bytes or len(data) < HEADER_BYTES:
        return None

    step = HEADER_BYTES + int(_LENGTH.unpack_from(data)[0])
    count, rest = divmod(len(data), step)
    end = count * step
    if step - HEADER_BYTES > EVENT_BYTES_MAX or count < _EQUAL_MIN:
        return None

    if any(data[at:end:step] != data[at : at + 1] * count for at in range(HEADER_BYTES)):
        return None

    if (
        rest >= HEADER_BYTES
        and not rest - HEADER_BYTES < _LENGTH.unpack_from(data, end)[0] <= EVENT_BYTES_MAX
    ):
        return None  # a shorter one follows, or what is none

    return range(0, end + 1, step)


def _walked_borders(data: Buffer) -> list[int]:
    position, end = 0, len(data)
    found = [0]
    unpack = _LENGTH.unpack_from
    while position + HEADER_BYTES <= end:
        [size] = unpack(data, position)
        if size > EVENT_BYTES_MAX:
            raise _no_frame(position, size)

        position += HEADER_BYTES + size
        if position > end:
            break

        found.append(position)
    return found


def frame_bytes(header: Buffer) -> int:
    """The bytes of the frame with this header, which is included."""
    if len(header) != HEADER_BYTES:
        raise DecodeError(f"a frame's header has {HEADER_BYTES} bytes, not {len(header)}")

    [size] = _LENGTH.unpack(header)
    if size > EVENT_BYTES_MAX:
        raise _no_frame(0, size)

    return HEADER_BYTES + int(size)


def _no_frame(position: int, size: int) -> DecodeError:
    return DecodeError(f"no frame begins at {position}: an event of {size} bytes is none")


# --- Arrow columns ------------------------------------------------------------------------------


class Frames(NamedTuple):
    """The frames of one column: their bytes, and where each ends in them."""

    data: memoryview
    ends: Sequence[int]


def encode_arrow(column: pa.Array) -> Frames:
    """The frames of a column of binary or string values, which has no nulls."""
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

    # A column of headers, joined to the values row by row: what Arrow keeps the result's values in are the
    # frames, one behind the other.
    headers = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(HEADER_BYTES), len(values), [None, pa.py_buffer(sizes.astype(">u4"))]
    ).cast(values.type)
    joined = pc.binary_join_element_wise(headers, values, pa.scalar(b"", values.type))
    _, offsets, data = joined.buffers()
    kind = np.int64 if pa.types.is_large_binary(joined.type) else np.int32
    bounds = np.frombuffer(offsets, kind)[joined.offset : joined.offset + len(joined) + 1].astype(np.int64)
    return Frames(memoryview(data)[int(bounds[0]) : int(bounds[-1])], (bounds[1:] - bounds[0]).tolist())


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
            f"give them a value"
        )

    return column.cast(pa.large_binary() if is_large else pa.binary())


def decode_arrow(data: Buffer, borders: Sequence[int]) -> pa.BinaryArray:
    """The events between ``borders``, which ``data`` was asked for: at most 2 GiB of them."""
    import numpy as np
    import pyarrow as pa

    if isinstance(borders, range) and borders.start == 0:
        return _equal_events(data, borders)

    # Headers and values take turns in one column over the same bytes, so that Arrow copies every second one.
    count = len(borders) - 1
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[::2] = borders
    bounds[1::2] = bounds[:-1:2] + HEADER_BYTES
    both = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return both.take(pa.array(np.arange(1, 2 * count, 2)))


def _equal_events(data: Buffer, borders: range) -> pa.BinaryArray:
    """The same for frames that are equally long, from the first byte on: a table whose first columns are the
    headers."""
    import numpy as np
    import pyarrow as pa

    count, step = len(borders) - 1, borders.step
    table = np.frombuffer(data, np.uint8, count * step).reshape(count, step)
    values = np.ascontiguousarray(table[:, HEADER_BYTES:])
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(step - HEADER_BYTES)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(values)])
