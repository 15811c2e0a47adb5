"""Byte ranges of one request: ``Range`` on the way in, ``Content-Range`` on the way out (rule H6). No I/O.

One range of the unit ``bytes`` at a time: ``a-b`` (both ends included), ``a-`` (to the tail at the time of
the request) or ``-n`` (the last n bytes that can be read). A range that begins at or past the tail raises
``RangeNotSatisfiable``, with the length; one that begins before the segment's start raises
``SegmentTruncated``, with the start. One that ends past the tail gives the bytes that exist."""

from __future__ import annotations

import re

import attrs

from ....storage_backends.base.errors import InvalidArgument, SegmentTruncated, shown
from .errors import RangeNotSatisfiable
from .headers import NUMBER_MAX

# Several ranges need a multipart answer (RFC 9110, 14.6), which no reader of segments asks for.
_RANGE = re.compile(r"bytes=[ \t]*(?:([0-9]{1,19})-([0-9]{1,19})?|-([0-9]{1,19}))[ \t]*")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/(?:[0-9]{1,19}|\*)")


@attrs.frozen
class RangeRequest:
    """``first`` and ``last`` (included; None: to the tail), or ``suffix``: so many bytes at the end."""

    first: int | None
    last: int | None = None
    suffix: int | None = None


@attrs.frozen
class Extent:
    """Bytes of a segment: from ``start`` to before ``end``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def content_range(self, length: int) -> str:
        """The value of ``Content-Range`` for an answer that has at least one byte."""
        return f"bytes {self.start}-{self.end - 1}/{length}"


def range_header(offset: int, size: int) -> str:
    """The ``Range`` of ``size`` bytes at ``offset``, at least one."""
    return f"bytes={offset}-{offset + size - 1}"


def parse_range(text: str) -> RangeRequest:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"Range is one of bytes=a-b, bytes=a- and bytes=-n, not {shown(text)}")

    first, last, suffix = (None if group is None else int(group) for group in match.groups())
    # RFC 9110, 14.2, lets a server ignore such a range. All bytes of a large segment would surprise more than
    # 400.
    if max(first or 0, last or 0, suffix or 0) > NUMBER_MAX or (
        first is not None and last is not None and last < first
    ):
        raise InvalidArgument(f"Range goes from a smaller to a larger offset below 2**63, not {shown(text)}")

    return RangeRequest(first, last, suffix)


def resolve_range(
    wanted: RangeRequest | None, name: str, start_offset: int, length: int, *, sealed: bool = False
) -> Extent:
    """The bytes that are meant in a segment of that start and length; all that can be read without a
    range."""
    if wanted is None:
        return Extent(start_offset, length)

    first = wanted.first
    if first is None:
        # A suffix longer than what is left means all of it (RFC 9110, 14.1.2).
        first = max(length - (wanted.suffix or 0), start_offset)
    if first < start_offset:
        raise SegmentTruncated(
            f"{name!r} begins at {start_offset}: offset {first} is gone",
            segment=name,
            start_offset=start_offset,
        )

    if first >= length:
        raise RangeNotSatisfiable(
            f"{name!r} ends at offset {length}: nothing at offset {first}", length=length, sealed=sealed
        )

    # A range may reach beyond the end, and is cut there: the segment may grow meanwhile.
    return Extent(first, length if wanted.last is None else min(wanted.last + 1, length))


def parse_content_range(text: str) -> Extent | None:
    """The extent of a 206 answer; None if the header is none."""
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        return None

    first, last = int(match[1]), int(match[2])
    return Extent(first, last + 1) if first <= last else None
