"""The public types of a segment: ``SegmentInfo`` and ``AttributeUpdate``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from .errors import InvalidArgument, shown

ATTRIBUTE_MIN = -(1 << 63)
ATTRIBUTE_MAX = (1 << 63) - 1
ATTRIBUTE_NAME_BYTES_MAX = 128
ATTRIBUTES_MAX = 16_384
"""The most attributes of one segment: every checkpoint contains all of them in one record."""


class AttributeUpdateKind(Enum):
    """The five ways to change an attribute. A missing attribute counts as 0 for ``ACCUMULATE``."""

    NONE = "none"
    """Set it only if it is missing."""
    REPLACE = "replace"
    REPLACE_IF_GREATER = "replace-if-greater"
    """Set it if it is missing, or the new value is greater."""
    ACCUMULATE = "accumulate"
    """Add the value."""
    REPLACE_IF_EQUALS = "replace-if-equals"
    """Set it if it equals ``expected``, or if it is missing and ``expected`` is None."""


@attrs.frozen
class AttributeUpdate:
    """A change of one attribute: ``AttributeUpdate("epoch", 7, AttributeUpdateKind.REPLACE_IF_EQUALS,
    expected=6)``.

    Raises ``InvalidArgument`` for a bad name, value or kind.
    """

    name: str
    """1 to 128 UTF-8 bytes."""
    value: int
    """A signed 64-bit integer."""
    kind: AttributeUpdateKind = AttributeUpdateKind.REPLACE
    expected: int | None = None
    """For ``REPLACE_IF_EQUALS`` only."""

    def __attrs_post_init__(self) -> None:
        _check_name(self.name)
        for value in (self.value, 0 if self.expected is None else self.expected):
            _check_value(self.name, value)

        if not isinstance(_as_object(self.kind), AttributeUpdateKind):
            raise InvalidArgument(
                f"attribute {self.name!r}: kind is an AttributeUpdateKind, not {self.kind!r}"
            )


def _check_name(name: object) -> None:
    if (
        not isinstance(name, str)
        or not 0 < len(name.encode("utf-8", "surrogatepass")) <= ATTRIBUTE_NAME_BYTES_MAX
    ):
        raise InvalidArgument(
            f"an attribute name is a str of 1 to {ATTRIBUTE_NAME_BYTES_MAX} UTF-8 bytes, not {name!r}"
        )

    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InvalidArgument(f"an attribute name is Unicode text, {name!r} is not: it has a lone surrogate")


def _check_value(name: str, value: object) -> None:
    if type(value) is not int or not ATTRIBUTE_MIN <= value <= ATTRIBUTE_MAX:
        raise InvalidArgument(f"attribute {name!r}: a value is a signed 64-bit integer, not {shown(value)}")


@attrs.frozen
class SegmentInfo:
    """A snapshot of one segment. Everything in it is durable."""

    name: str
    segment_id: int
    """Never reused: a segment that was deleted and created again has another id."""
    length: int
    """The offset after the last byte, at which the next append begins."""
    start_offset: int
    """The first byte that can be read."""
    sealed: bool
    attributes: Mapping[str, int]
    flushed_length: int
    """The segment is in long-term storage up to this offset; the rest is in the write-ahead log and the
    cache."""
    container: int
    is_table: bool = False
    """It was made by ``create_table``: it has rows and no bytes."""


def _as_object(value: object) -> object:
    """Erases the static type: callers without a type checker may pass anything."""
    return value
