"""LogElement: an element of the chain is about to be created in long-term storage; ElementCreated: it exists
(rules J3, J5).

``LogElement`` is durable before the creation begins, with the element's content, so that every later owner of
this log knows the element and can create it again with the same bytes. ``LogElementChange`` is the same for
an element that follows one with runs: it copies from the head's content what both have, because a run list of
240 KiB in each of them would fill a log without room (rule W6). Bytes are copied and not runs, so that the
content does not depend on how a version of the code encodes them. ``ElementCreated`` is what makes it count.
``CheckpointManifest`` has both for a checkpoint.

Layouts: ``content blob``; ``begin blob, newer (offset u32, length u32), changed blob, older (offset u32,
length u32), end blob``; ``n u64, CRC u32``; ``checkpoint u64, head content blob, intent content blob``, empty
for none."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import attrs

from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.base.values import Value
from ..manifest.element import CRC_BYTES, Element, Position, position_of, runs_at
from .operation import operation


@operation(23)
@attrs.frozen(eq=False, repr=False)
class LogElement(Value):
    content: bytes
    """The encoded element."""
    decoded: Element | None = attrs.field(default=None, eq=False, repr=False)
    """What it decodes to, if the owner has just made it: to decode a long run list takes a step of 5 ms."""

    @staticmethod
    def of(element: Element) -> LogElement:
        return LogElement(element.encode(), element)

    @staticmethod
    def after(head: LogElement | None, content: bytes) -> LogElement:
        """Decode it with the entries of runs of ``head`` where their bytes are equal, as nearly all of a long
        run list are: to decode them again, for each element of a log, takes most of the time of an opening.
        Raises ``DecodeError``."""
        if head is None:
            return LogElement(content)

        fields = Decoder(head.content, runs_at(head.content))
        known = {fields.blob(): run for run in head.element.runs}
        return LogElement(content, Element.decode(content, known))

    @property
    def position(self) -> Position:
        return position_of(self.content)

    @cached_property
    def element(self) -> Element:
        return Element.decode(self.content) if self.decoded is None else self.decoded

    def encode(self) -> bytes:
        return Encoder().blob(self.content).finish()

    @staticmethod
    def decode(fields: Decoder) -> LogElement:
        return LogElement(fields.blob())


class Copied(NamedTuple):
    """A range of the head's content."""

    offset: int
    length: int

    def of(self, content: bytes) -> bytes:
        """Raises ``DecodeError`` if ``content`` does not have it."""
        if self.offset + self.length > len(content):
            raise DecodeError(f"the element before has {len(content)} bytes, not {self.offset + self.length}")

        return content[self.offset : self.offset + self.length]


@operation(27)
@attrs.frozen(eq=False, repr=False)
class LogElementChange(Value):
    begin: bytes
    newer: Copied
    """Runs before the changed ones, as a rule."""
    changed: bytes
    older: Copied
    """Runs behind the changed ones, and the pins, as a rule."""
    end: bytes
    made: LogElement | None = attrs.field(default=None, eq=False, repr=False)
    """What it makes, in the owner that records it."""

    @staticmethod
    def between(head: LogElement, op: LogElement) -> LogElementChange:
        """What makes ``op`` of ``head``."""
        old, new = head.content[:-CRC_BYTES], op.content[:-CRC_BYTES]
        # A change of the list is one range of it: runs are in the order of their cycles.
        start, begin = runs_at(head.content), runs_at(op.content)
        newer = _shared(old[start:], new[begin:], forward=True)
        older = _shared(old[start + newer :], new[begin + newer :], forward=False)
        return LogElementChange(
            new[:begin],
            Copied(start, newer),
            new[begin + newer : len(new) - older],
            Copied(len(old) - older, older),
            op.content[len(new) :],
            op,
        )

    def made_from(self, head: LogElement | None) -> LogElement:
        """The element that is recorded; ``head`` is the newest that exists. Raises ``DecodeError``."""
        if head is None:
            raise DecodeError("an element is a change of the one before, and there is none")

        newer, older = self.newer.of(head.content), self.older.of(head.content)
        content = b"".join((self.begin, newer, self.changed, older, self.end))
        # Only if replay makes the same of it.
        if self.made is not None and self.made.content == content:
            return self.made

        return LogElement.after(head, content)

    def encode(self) -> bytes:
        out = Encoder().blob(self.begin).u32(self.newer.offset).u32(self.newer.length).blob(self.changed)
        return out.u32(self.older.offset).u32(self.older.length).blob(self.end).finish()

    @staticmethod
    def decode(fields: Decoder) -> LogElementChange:
        return LogElementChange(
            fields.blob(),
            Copied(fields.u32(), fields.u32()),
            fields.blob(),
            Copied(fields.u32(), fields.u32()),
            fields.blob(),
        )


def _shared(one: bytes, other: bytes, *, forward: bool) -> int:
    """How many bytes both begin with; without ``forward``, end with."""
    low, high = 0, min(len(one), len(other))
    # Slices are compared, which takes microseconds; bytes one by one would take milliseconds.
    while low < high:
        middle = (low + high + 1) // 2
        if forward:
            is_shared = one[low:middle] == other[low:middle]
        else:
            is_shared = one[-middle : len(one) - low] == other[-middle : len(other) - low]
        low, high = (middle, high) if is_shared else (low, middle - 1)
    return low


@operation(24)
class ElementCreated(NamedTuple):
    position: Position

    def encode(self) -> bytes:
        return Encoder().u64(self.position.n).u32(self.position.crc).finish()

    @staticmethod
    def decode(fields: Decoder) -> ElementCreated:
        return ElementCreated(Position(fields.u64(), fields.u32()))


@operation(25)
class CheckpointManifest(NamedTuple):
    checkpoint: int
    head: bytes
    """The newest element that exists; empty if there is none."""
    intent: bytes
    """The element that is recorded and not known to exist; empty if there is none."""

    def encode(self) -> bytes:
        return Encoder().u64(self.checkpoint).blob(self.head).blob(self.intent).finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointManifest:
        return CheckpointManifest(fields.u64(), fields.blob(), fields.blob())
