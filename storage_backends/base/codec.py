"""Encoding of persisted records: fixed-width big-endian fields and length-prefixed bytes.

A ``Decoder`` over arbitrary bytes returns a value or raises ``DecodeError``; it never reads past its end,
allocates more than its input's size, or loops. Each record's own file has its layout; frames and objects
carry the checksums.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, chain
from operator import sub
from typing import Any, TypeVar

from .checksum import Buffer

E = TypeVar("E", bound=IntEnum)

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")
_GAPS = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Formats by width in bytes."""
_HEX = re.compile(r"[0-9a-f]{16}")


class DecodeError(ValueError):
    """The bytes are not the expected record. The layer that knows the file turns this into
    ``DataCorruption``."""


class NewerFormat(DecodeError):
    """The bytes are whole, and of a version of tierlog that came after this one."""


def hex_number(text: str) -> int:
    """The 64-bit number in a key or name: exactly 16 lower-case hex digits. ``int`` alone also accepts signs,
    ``0x``, ``_`` and blanks, so that two names would mean one number."""
    if not _HEX.fullmatch(text):
        raise DecodeError(f"{text[:40]!r} is not a number of 16 hex digits")
    return int(text, 16)


class Encoder:
    """Collects fields; ``finish()`` joins them. A value outside a field's range raises ``struct.error``: a
    bug of the caller."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[Buffer] = []

    def u8(self, value: int) -> Encoder:
        self._parts.append(_U8.pack(value))
        return self

    def u16(self, value: int) -> Encoder:
        self._parts.append(_U16.pack(value))
        return self

    def u32(self, value: int) -> Encoder:
        self._parts.append(_U32.pack(value))
        return self

    def u64(self, value: int) -> Encoder:
        self._parts.append(_U64.pack(value))
        return self

    def i64(self, value: int) -> Encoder:
        self._parts.append(_I64.pack(value))
        return self

    def blob(self, value: Buffer) -> Encoder:
        """Bytes with a 32-bit length before them."""
        self._parts.append(_U32.pack(len(value)))
        self._parts.append(value)
        return self

    def optional_blob(self, value: Buffer | None) -> Encoder:
        """A flag, and the blob unless ``value`` is None."""
        return self.u8(0) if value is None else self.u8(1).blob(value)

    def text(self, value: str) -> Encoder:
        """UTF-8 with a 16-bit length before it."""
        data = value.encode()
        self._parts.append(_U16.pack(len(data)))
        self._parts.append(data)
        return self

    def raw(self, value: Buffer) -> Encoder:
        """Bytes as they are; the reader must know how many."""
        self._parts.append(value)
        return self

    def ascending(self, values: Sequence[int]) -> Encoder:
        """Strictly ascending 64-bit numbers: their count, the first one, and the gaps between them, all in
        the fewest bytes that the widest one needs. A hundred thousand take some milliseconds."""
        self.u32(len(values))
        if values:
            gaps = list(map(sub, values[1:], values))
            width = _width(gaps)
            self.u64(values[0]).u8(width).raw(struct.pack(f">{len(gaps)}{_GAPS[width]}", *gaps))
        return self

    def finish(self) -> bytes:
        return b"".join(self._parts)


def _width(gaps: Sequence[int]) -> int:
    widest = max(gaps, default=0)
    return next((width for width in _GAPS if widest >> (8 * width) == 0), 8)


class Decoder:
    """Reads fields in the order in which they were written."""

    __slots__ = ("_end", "_view", "position")

    def __init__(self, data: Buffer, position: int = 0, end: int | None = None) -> None:
        self._view = memoryview(data)
        self.position = position
        self._end = len(self._view) if end is None else end
        if not 0 <= position <= self._end <= len(self._view):
            raise DecodeError(f"range {position}..{self._end} lies outside {len(self._view)} bytes")

    @property
    def remaining(self) -> int:
        return self._end - self.position

    def _take(self, form: struct.Struct) -> int:
        start = self.position
        if start + form.size > self._end:
            raise DecodeError(f"{form.size} bytes wanted at {start}, {self._end - start} left")
        self.position = start + form.size
        value: int = form.unpack_from(self._view, start)[0]
        return value

    def u8(self) -> int:
        return self._take(_U8)

    def u16(self) -> int:
        return self._take(_U16)

    def u32(self) -> int:
        return self._take(_U32)

    def u64(self) -> int:
        return self._take(_U64)

    def i64(self) -> int:
        return self._take(_I64)

    def flag(self) -> bool:
        """One byte, 0 or 1. Any other value was never written, so accepting it would hide corruption."""
        value = self.u8()
        if value > 1:
            raise DecodeError(f"flag at {self.position - 1} is {value}, neither 0 nor 1")
        return bool(value)

    def member(self, kind: type[E]) -> E:
        """One byte, the value of a member of ``kind``. One that this code does not know is refused: what it
        means may decide what is deleted."""
        value = self.u8()
        try:
            return kind(value)
        except ValueError as error:
            raise DecodeError(
                f"{kind.__name__} at {self.position - 1} is {value}, which is unknown"
            ) from error

    def unpacked(self, form: struct.Struct) -> tuple[Any, ...]:
        """Several numbers at once, which takes as long as one of them."""
        return form.unpack(self.raw(form.size))

    def raw(self, size: int) -> memoryview:
        start = self.position
        if size < 0 or start + size > self._end:
            raise DecodeError(f"{size} bytes wanted at {start}, {self._end - start} left")
        self.position = start + size
        return self._view[start : start + size]

    def blob(self) -> bytes:
        return bytes(self.raw(self.u32()))

    def optional_blob(self) -> bytes | None:
        return self.blob() if self.flag() else None

    def text(self) -> str:
        data = bytes(self.raw(self.u16()))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"text at {self.position - len(data)} is not UTF-8") from error

    def ascending(self) -> tuple[int, ...]:
        count = self.u32()
        if not count:
            return ()

        first, width = self.u64(), self.u8()
        if width not in _GAPS:
            raise DecodeError(f"numbers of {width} bytes at {self.position - 1}")
        gaps = struct.unpack(f">{count - 1}{_GAPS[width]}", self.raw((count - 1) * width))
        # One form for each value.
        if 0 in gaps or _width(gaps) != width:
            raise DecodeError(f"the numbers before {self.position} are not in order, or have another width")
        return tuple(accumulate(chain((first,), gaps)))

    def skip_ascending(self) -> None:
        """Go on behind the numbers, which are not decoded."""
        if count := self.u32():
            self.raw(8)
            self.raw(self.u8() * (count - 1))

    def rest(self) -> bytes:
        """All remaining bytes: unknown fields, to be written back unchanged."""
        return bytes(self.raw(self.remaining))

    def finish(self) -> None:
        """Require that nothing remains: trailing bytes mean another record, or corruption."""
        if self.position != self._end:
            raise DecodeError(f"{self._end - self.position} bytes left over at {self.position}")
