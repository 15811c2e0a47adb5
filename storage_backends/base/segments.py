"""The public types of segments and of their attributes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from .errors import InvalidArgument, shown

ATTRIBUTE_MIN = -(1 << 63)
ATTRIBUTE_MAX = (1 << 63) - 1
ATTRIBUTE_NAME_BYTES_MAX = 128
ATTRIBUTE_ID_BYTES = 16
ATTRIBUTES_SHOWN_MAX = 1_024
"""The most attributes in a ``SegmentInfo``."""
ATTRIBUTE_UPDATES_MAX = 1_024
"""The most updates of one call, which is decided in one step."""
ATTRIBUTE_PAGE, ATTRIBUTE_PAGE_MAX = 1_000, 4_096
"""Attributes of a page, and the most."""
SEGMENTS_PAGE_MAX = 1_000
"""The most names of a page of segments."""
AttributeName = str | bytes
"""A name of 1 to 128 UTF-8 bytes, or an id of exactly 16 bytes."""


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


class AttributeUpdate(Struct, frozen=True):
    """A change of one attribute: ``AttributeUpdate("epoch", 7, AttributeUpdateKind.REPLACE_IF_EQUALS,
    expected=6)``.

    Raises ``InvalidArgument`` for a bad name, value or kind, and for an ``expected`` that the kind would
    ignore.
    """

    name: AttributeName
    """A str of 1 to 128 UTF-8 bytes, or an id: exactly 16 bytes."""
    value: int
    """A signed 64-bit integer."""
    kind: AttributeUpdateKind = AttributeUpdateKind.REPLACE
    expected: int | None = None
    """For ``REPLACE_IF_EQUALS`` only."""

    def __post_init__(self) -> None:
        check_attribute_name(self.name)
        for value in (self.value, 0 if self.expected is None else self.expected):
            _check_value(self.name, value)

        if not isinstance(_as_object(self.kind), AttributeUpdateKind):
            raise InvalidArgument(
                f"attribute {self.name!r}: kind is an AttributeUpdateKind, not {self.kind!r}"
            )
        if self.expected is not None and self.kind is not AttributeUpdateKind.REPLACE_IF_EQUALS:
            raise InvalidArgument(
                f"attribute {self.name!r}: expected is for replace-if-equals only, not for {self.kind.value}"
            )


def check_attribute_name(name: object) -> None:
    if isinstance(name, bytes) and len(name) == ATTRIBUTE_ID_BYTES:
        return

    if (
        not isinstance(name, str)
        or not 0 < len(name.encode("utf-8", "surrogatepass")) <= ATTRIBUTE_NAME_BYTES_MAX
    ):
        raise InvalidArgument(
            f"an attribute name is a str of 1 to {ATTRIBUTE_NAME_BYTES_MAX} UTF-8 bytes, or an id of "
            f"{ATTRIBUTE_ID_BYTES} bytes, not {shown(name)}"
        )

    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InvalidArgument(f"an attribute name is Unicode text, {name!r} is not: it has a lone surrogate")


def _check_value(name: AttributeName, value: object) -> None:
    if type(value) is not int or not ATTRIBUTE_MIN <= value <= ATTRIBUTE_MAX:
        raise InvalidArgument(f"attribute {name!r}: a value is a signed 64-bit integer, not {shown(value)}")


class SegmentInfo(Struct, frozen=True):
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
    """Those with names, at most 1,024: the ones that were set first."""
    flushed_length: int
    """The segment is in long-term storage up to this offset; the rest is in the write-ahead log and the
    cache."""
    container: int
    is_table: bool = False
    """It was made by ``create_table``: it has rows and no bytes."""
    more_attributes: bool = False
    """The segment has attributes that are not in ``attributes``: further names, or ids. ``list_attributes``
    lists all of them."""
    history: int = 0
    """The history that its offsets are of: 0 until the store was recovered from long-term storage alone,
    which begins another one. Keep it with an offset that outlives the store or the client, and pass both."""


class SegmentPage(Struct, frozen=True):
    """Names of segments, in order."""

    names: list[str]
    """Perhaps none: a page ends after some thousand segments that it does not show as well."""
    token: str | None
    """Continues after this page; None if there is nothing more. It stays valid, whatever becomes of the
    segments or of the process that gave it."""


class AttributePage(Struct, frozen=True):
    """Some attributes of a segment, as of one moment, in order."""

    attributes: Mapping[AttributeName, int]
    after: AttributeName | None
    """Where the next page begins: its argument ``after``. None if there are no more. It stays valid, whatever
    becomes of the segment or of the process that gave it."""


def _as_object(value: object) -> object:
    """Erases the static type: callers without a type checker may pass anything."""
    return value
