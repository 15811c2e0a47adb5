"""Attribute updates refuse what could not be logged."""

from __future__ import annotations

from typing import Any

import pytest

from tierlog.storage_backends.base.errors import InvalidArgument
from tierlog.storage_backends.base.segments import (
    ATTRIBUTE_MAX,
    ATTRIBUTE_MIN,
    AttributeUpdate,
    AttributeUpdateKind,
)


@pytest.mark.parametrize("value", [0, ATTRIBUTE_MIN, ATTRIBUTE_MAX])
def test_a_value_is_a_signed_integer_of_64_bits(value: int) -> None:
    assert AttributeUpdate("a", value).value == value
    assert AttributeUpdate("a", 0, AttributeUpdateKind.REPLACE_IF_EQUALS, value).expected == value


@pytest.mark.parametrize("value", [ATTRIBUTE_MIN - 1, ATTRIBUTE_MAX + 1, 1.0, "1", None, True])
def test_any_other_value_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="64-bit"):
        AttributeUpdate("a", value)


def test_an_expected_value_is_checked_too() -> None:
    for expected in (ATTRIBUTE_MAX + 1, "1"):
        with pytest.raises(InvalidArgument, match="64-bit"):
            AttributeUpdate("a", 0, AttributeUpdateKind.REPLACE_IF_EQUALS, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("expected", [0, 6])
def test_an_expected_value_that_the_kind_would_ignore_is_refused(expected: int) -> None:
    for kind in AttributeUpdateKind:
        if kind is not AttributeUpdateKind.REPLACE_IF_EQUALS:
            with pytest.raises(InvalidArgument, match="expected is for replace-if-equals only"):
                AttributeUpdate("a", 7, kind, expected)


@pytest.mark.parametrize("name", ["", "x" * 129, "é" * 65, b"a", 7, None])
def test_a_name_has_1_to_128_bytes(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        AttributeUpdate(name, 0)


def test_the_longest_name_passes() -> None:
    assert AttributeUpdate("é" * 64, 0).name == "é" * 64


def test_a_kind_is_one_of_the_five() -> None:
    with pytest.raises(InvalidArgument, match="kind"):
        AttributeUpdate("a", 0, "replace")  # type: ignore[arg-type]

    assert [kind.value for kind in AttributeUpdateKind] == [
        "none",
        "replace",
        "replace-if-greater",
        "accumulate",
        "replace-if-equals",
    ]


def test_a_name_that_is_not_unicode_text_is_refused() -> None:
    """It is logged as UTF-8, which has no lone surrogates."""
    with pytest.raises(InvalidArgument, match="name"):
        AttributeUpdate("\ud800", 0)
