"""Columns: which one is written, which ones are read, and the frames of the written one.

Errors are raised on the driver, before any task runs. Spark's schemas are read by name and type name only, so
that this module needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import attrs

from ..storage_backends.base.errors import InvalidArgument
from . import events

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

VALUE = "value"
SEGMENT = "segment"
OFFSET = "offset"
READ_SCHEMA = "segment string, offset bigint, value binary"
VALUE_SCHEMA = "value binary"
_READABLE = {SEGMENT: ("string",), OFFSET: ("bigint",), VALUE: ("binary", "string")}
_WRITABLE = ("binary", "string")
ROWS = 10_000
"""Python rows that are framed together, like the rows of one of Spark's Arrow batches."""


@attrs.frozen
class Column:
    name: str
    kind: str
    """Spark's name of the type: ``binary``, ``string``, ``bigint``."""


def columns_of(schema: StructType) -> tuple[Column, ...]:
    return tuple(Column(field.name, field.dataType.simpleString()) for field in schema.fields)


def written_column(columns: Sequence[Column]) -> int:
    """The index of the column that contains the events: the one called ``value``, or the only one."""
    # Spark compares names of columns without case, unless spark.sql.caseSensitive is set.
    indexes = [index for index, column in enumerate(columns) if column.name.lower() == VALUE]
    if not indexes and len(columns) == 1:
        indexes = [0]
    if len(indexes) != 1:
        names = ", ".join(f"{column.name} {column.kind}" for column in columns) or "none"
        raise InvalidArgument(
            f"a write needs one column called 'value', or a single column; there are: {names}"
        )

    column = columns[indexes[0]]
    if column.kind not in _WRITABLE:
        raise InvalidArgument(
            f"column {column.name!r} is {column.kind}: events are binary or string; "
            "cast it, or convert the whole row to text with to_json(struct(*))"
        )

    return indexes[0]


def read_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns of a read: some of ``segment``, ``offset`` and ``value``, in any order."""
    for column in columns:
        if column.kind not in _READABLE.get(column.name, ()):
            raise InvalidArgument(
                f"there is no column {column.name!r} of type {column.kind} to read: there are "
                "segment string, offset bigint, and value binary (or value string, for events that are UTF-8)"
            )

    if not columns or len({column.name for column in columns}) != len(columns):
        raise InvalidArgument("a read has at least one column, and each of them once: segment, offset, value")

    return tuple(columns)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema that Spark expects of a read."""
    import pyarrow as pa

    kinds: dict[str, Any] = {"binary": pa.binary(), "string": pa.string(), "bigint": pa.int64()}
    return pa.schema([(column.name, kinds[column.kind]) for column in columns])


# --- frames -------------------------------------------------------------------------------------


def arrow_frames(batches: Iterable[pa.RecordBatch], column: int) -> Iterator[events.Frames]:
    for batch in batches:
        yield events.encode_arrow(batch.column(column))


def row_frames(rows: Iterable[Sequence[object]], column: int) -> Iterator[events.Frames]:
    """The same from Python rows; slower, for data that Arrow cannot represent."""
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

    # PySpark gives binary values of rows as bytearrays.
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)

    raise InvalidArgument(
        f"an event is binary or a string, not "
        f"{'null: filter such rows' if value is None else type(value).__name__}"
    )


def _frames(chunk: list[bytes]) -> events.Frames:
    ends = accumulate(events.HEADER_BYTES + len(event) for event in chunk)
    return events.Frames(memoryview(events.encode(chunk)), list(ends))
