"""Columns: the one that is written, those that are read; errors list the columns that exist."""

from __future__ import annotations

import pytest

from tierlog.spark_bridge.schema import Column, read_columns, written_column
from tierlog.storage_backends.base.errors import InvalidArgument

KEY, VALUE, TEXT = Column("key", "string"), Column("Value", "binary"), Column("text", "string")


def test_the_column_called_value_is_written_or_the_only_one() -> None:
    assert written_column([KEY, VALUE]) == 1
    assert written_column([TEXT]) == 0


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([KEY, TEXT], "one column called 'value', or a single column; there are: key string, text string"),
        ([], "there are: none"),
        ([VALUE, Column("VALUE", "string")], "there are: Value binary, VALUE string"),
        ([Column("value", "int")], r"column 'value' is int: events are binary or string; .*to_json"),
    ],
)
def test_other_columns_cannot_be_written(columns: list[Column], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        written_column(columns)


def test_some_of_the_three_columns_are_read_in_any_order() -> None:
    columns = (Column("value", "string"), Column("segment", "string"))

    assert read_columns(columns) == columns


@pytest.mark.parametrize(
    "columns",
    [
        [],
        [Column("key", "string")],
        [Column("offset", "int")],
        [Column("value", "binary"), Column("value", "binary")],
    ],
)
def test_other_columns_cannot_be_read(columns: list[Column]) -> None:
    with pytest.raises(InvalidArgument, match="segment"):
        read_columns(columns)
