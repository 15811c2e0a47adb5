"""From what Spark hands to a task to frames: Arrow batches, or Python rows.

Owns: both ways. Does not own: which column holds the events (``schema.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ..storage_backends.base.errors import InvalidArgument
from . import events

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 10_000
"""Python rows that are framed together: what an Arrow batch of Spark has."""


def arrow_frames(batches: Iterable[pa.RecordBatch], column: int) -> Iterator[events.Frames]:
    for batch in batches:
        yield events.encode_arrow(batch.column(column))


def row_frames(rows: Iterable[Sequence[object]], column: int) -> Iterator[events.Frames]:
    """The same out of rows; slower, for batches that Arrow cannot make."""
    chunk: list[bytes] = []
    for row in rows:
        chunk.append(_event(row[column]))
        if len(chunk) == ROWS:
            yield _frames(chunk)
            chunk = []
    if chunk:
        yield _frames(chunk)


def _event(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()

    if isinstance(value, (bytes, bytearray)):
        return bytes(value)

    raise InvalidArgument(
        f"an event is binary or a string, not "
        f"{'null: filter such rows' if value is None else type(value).__name__}"
    )


def _frames(chunk: list[bytes]) -> events.Frames:
    ends = accumulate(events.HEADER_BYTES + len(event) for event in chunk)
    return events.Frames(memoryview(events.encode(chunk)), list(ends))
