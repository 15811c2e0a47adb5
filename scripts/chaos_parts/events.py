"""The events that writers append, and the check that a segment contains what the ledger requires.

An event is one line: writer, number, padding length, CRC-32, and the padding. All its bytes follow from its
writer and number, so the check knows every byte:

- every acked event is there exactly once; events of numbered writers are in order and without gaps
- a rejected event is not there; an event with an unknown outcome is there at most once
- nothing is torn, and nothing is there that no writer sent
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping

import attrs

from chaos_parts.ledger import Writer
from chaos_parts.processes import counted

_HEAD = re.compile(rb"([a-z0-9.]{1,40}) ([0-9]{1,12}) ([0-9]{1,6}) ([0-9a-f]{8}) ")
_HEAD_MAX = 80
_PADDING = bytes(range(33, 127)) * 800
_SHORT, _PAGE, _LONG = 200, 4_096, 60_000
_REPORTED_MAX = 5
"""Violations reported for each writer."""


def event_bytes(writer: str, number: int) -> bytes:
    """The event: mostly short, sometimes 4 KiB, rarely 60 kB."""
    chance = zlib.crc32(b"%s/%d" % (writer.encode(), number))
    size = _LONG if chance % 997 == 0 else _PAGE if chance % 31 == 0 else chance % _SHORT
    start = chance % 94
    padding = _PADDING[start : start + size]
    head = b"%s %d %d" % (writer.encode(), number, size)
    return b"%s %08x %s\n" % (head, zlib.crc32(padding, zlib.crc32(head)), padding)


@attrs.define
class _Found:
    """The events of one writer so far."""

    writer: Writer
    is_live: bool = False
    """Whether it still writes, so that events may have no outcome yet."""
    next: int = 0
    seen: set[int] = attrs.field(factory=set)
    """Events of a plain writer that were read."""
    last_acked: int = -1
    unknown: int = 0
    checked: int = 0
    """Of the events of a plain writer below this number it is known whether one was lost."""
    violations: list[str] = attrs.field(factory=list)

    def add(self, number: int, offset: int) -> str:
        """Returns the violation; empty if the event may be there."""
        writer, expected = self.writer, self.next
        self.next = max(expected, number + 1)
        if number in self.seen or (writer.numbered and number < expected):
            return "is there twice"
        if not writer.numbered:
            self.seen.add(number)
        if writer.sent_max is not None and number >= writer.sent_max:
            return "was never sent"
        if number in writer.rejected:
            return "is there, though it was rejected"
        if number in writer.unknown:
            self.unknown += 1  # It may arrive late, over a connection that its writer had given up.
            return ""
        if writer.numbered and number > expected:
            return f"comes where {expected} should: events were lost or reordered"
        if not writer.numbered and number >= writer.next and not self.is_live:
            return "has no outcome"
        if writer.ordered and number < self.last_acked:
            return f"follows {self.last_acked}, which was sent later"
        self.last_acked = number
        acked_at = writer.offsets.get(number, offset)
        return "" if acked_at == offset else f"was acked at offset {acked_at}"

    def finish(self, acked: int) -> list[str]:
        """The violations so far: all events below ``acked`` that must be there were read."""
        writer = self.writer
        known = self.seen | writer.unknown | writer.rejected
        first = self.next if writer.numbered else self.checked
        if missing := [number for number in range(first, acked) if number not in known]:
            lost = f"{counted(len(missing), 'acked event')} of {writer.id} lost"
            self.violations.append(f"{writer.segment}: {lost}, the first is {missing[0]}")
        self.checked = max(self.checked, acked)
        return self.violations


class SegmentCheck:
    """One segment, block by block."""

    def __init__(self, name: str, writers: Iterable[Writer], *, is_live: bool = False) -> None:
        """``is_live``: whether the writers go on, as they do until the end of a run."""
        self.name = name
        self.bytes = 0
        self.events = 0
        self._found = {writer.id: _Found(writer, is_live) for writer in writers if writer.segment == name}
        self._rest = b""
        self._offset = 0
        """Where ``_rest`` begins."""
        self._broken = ""
        """Why the rest of the segment cannot be checked."""

    @property
    def unknown(self) -> int:
        """Events with an unknown outcome that were there."""
        return sum(found.unknown for found in self._found.values())

    def feed(self, block: bytes) -> None:
        self.bytes += len(block)
        if self._broken:
            return

        data, at = self._rest + block, 0
        while at < len(data) and not self._broken:
            head = _HEAD.match(data, at)
            if head is None:
                if len(data) - at >= _HEAD_MAX or b"\n" in data[at:]:
                    self._break(at, data[at:])
                break
            if (end := head.end() + int(head[3]) + 1) > len(data):
                break
            if data[at:end] != event_bytes(head[1].decode(), int(head[2])):
                self._break(at, data[at:end])
            else:
                self._see(head[1].decode(), int(head[2]), self._offset + at)
            at = end
        self._rest = data[at:]
        self._offset += at

    @property
    def acked(self) -> dict[str, int]:
        """By writer, the number below which all events have an outcome now."""
        return {name: found.writer.next for name, found in self._found.items()}

    def finish(self) -> list[str]:
        """The segment ends here: every violation."""
        if self._rest and not self._broken:
            self._break(0, self._rest)
        return self.finish_round(self.acked)

    def finish_round(self, acked: Mapping[str, int]) -> list[str]:
        """Every violation, while the writers go on: what was ``acked`` before the segment was read to its
        tail must be there."""
        broken = [f"{self.name}, {self._broken}"] if self._broken else []
        return broken + [each for name, found in self._found.items() for each in found.finish(acked[name])]

    def _break(self, at: int, found: bytes) -> None:
        self._broken = f"offset {self._offset + at}: no event begins here, but {found[:60]!r}"

    def _see(self, writer: str, number: int, offset: int) -> None:
        self.events += 1
        found = self._found.get(writer)
        if found is None:
            self._broken = f"offset {offset}: there is no writer {writer}"
        elif (violation := found.add(number, offset)) and len(found.violations) < _REPORTED_MAX:
            found.violations.append(f"{self.name}, offset {offset}: event {number} of {writer} {violation}")
