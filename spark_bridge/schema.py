"""Columns: which one is written, and which are read.

Owns: the choice of the column that holds the events, the columns that a read can give, and their Arrow forms;
all errors come on the driver, before any task runs. Does not own: framing.

Spark's schemas are looked at by name and type name only, so that this module needs no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ..storage_backends.base.errors import InvalidArgument

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


@attrs.frozen
class Column:
    name: str
    kind: str
    """As Spark writes it: ``binary``, ``string``, ``bigint``."""


def columns_of(schema: StructType) -> tuple[Column, ...]:
    return tuple(Column(field.name, field.dataType.simpleString()) for field in schema.fields)


def written_column(columns: Sequence[Column]) -> int:
    """The place of the column that holds the events: the one called ``value``, or the only one."""
    places = [place for place, column in enumerate(columns) if column.name.lower() == VALUE]
    if not places and len(columns) == 1:
        places = [0]
    if len(places) != 1:
        names = ", ".join(f"{column.name} {column.kind}" for column in columns) or "none"
        raise InvalidArgument(
            f"a write needs one column called 'value', or a single column; there are: {names}"
        )

    column = columns[places[0]]
    if column.kind not in _WRITABLE:
        raise InvalidArgument(
            f"column {column.name!r} is {column.kind}: events are binary or string; "
            "cast it, or make text of the whole row with to_json(struct(*))"
        )

    return places[0]


def read_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns of a read, checked: some of ``segment``, ``offset`` and ``value``, in any order."""
    for column in columns:
        if column.kind not in _READABLE.get(column.name, ()):
            raise InvalidArgument(
                f"there is no column {column.name!r} of type {column.kind} to read: there are "
                "segment string, offset bigint, and value binary (or value string, for events that are UTF-8)"
            )

    if not columns or len({column.name for column in columns}) != len(columns):
        raise InvalidArgument(
            "a read gives each of its columns once, and at least one: segment, offset, value"
        )

    return tuple(columns)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Exactly what Spark expects of a read."""
    import pyarrow as pa

    kinds: dict[str, Any] = {"binary": pa.binary(), "string": pa.string(), "bigint": pa.int64()}
    return pa.schema([(column.name, kinds[column.kind]) for column in columns])
