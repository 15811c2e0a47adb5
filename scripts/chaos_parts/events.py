"""The events that writers append: one line with writer, number, padding length, CRC-32, and the padding.

All bytes of an event follow from its writer and number, so a reader knows every byte that must be there.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

import attrs

_HEAD = re.compile(rb"([a-z0-9.]{1,40}) ([0-9]{1,12}) ([0-9]{1,6}) ([0-9a-f]{8}) ")
_HEAD_MAX = 80
_PADDING = bytes(range(33, 127)) * 800
_SHORT, _PAGE, _LONG = 200, 4_096, 60_000


class TornError(Exception):
    """The bytes at ``offset`` of a segment are no event."""

    def __init__(self, offset: int, found: bytes) -> None:
        super().__init__(f"offset {offset}: no event begins here, but {found[:60]!r}")
        self.offset = offset


@attrs.frozen
class Event:
    writer: str
    number: int
    offset: int


def event_bytes(writer: str, number: int) -> bytes:
    """The event: mostly short, sometimes 4 KiB, rarely 60 kB."""
    chance = zlib.crc32(b"%s/%d" % (writer.encode(), number))
    size = _LONG if chance % 997 == 0 else _PAGE if chance % 31 == 0 else chance % _SHORT
    start = chance % 94
    padding = _PADDING[start : start + size]
    head = b"%s %d %d" % (writer.encode(), number, size)
    return b"%s %08x %s\n" % (head, zlib.crc32(padding, zlib.crc32(head)), padding)


class EventReader:
    """Parses a segment block by block. Raises ``TornError`` where no event begins."""

    def __init__(self) -> None:
        self._rest = b""
        self.offset = 0
        """Where ``_rest`` begins."""

    def feed(self, block: bytes) -> Iterator[Event]:
        data = self._rest + block
        at = 0
        while (end := self._end(data, at)) is not None:
            head = _HEAD.match(data, at)
            assert head is not None
            writer, number = head[1].decode(), int(head[2])
            if data[at:end] != event_bytes(writer, number):
                raise TornError(self.offset + at, data[at:end])
            yield Event(writer, number, self.offset + at)
            at = end
        self._rest = data[at:]
        self.offset += at

    def finish(self) -> None:
        """The segment ends here. Raises ``TornError`` within an event."""
        if self._rest:
            raise TornError(self.offset, self._rest)

    def _end(self, data: bytes, at: int) -> int | None:
        """Where the event at ``at`` ends; None if that comes with a later block."""
        head = _HEAD.match(data, at)
        if head is None:
            if len(data) - at >= _HEAD_MAX or b"\n" in data[at:]:
                raise TornError(self.offset + at, data[at : at + _HEAD_MAX])
            return None

        end = head.end() + int(head[3]) + 1
        return end if end <= len(data) else None
