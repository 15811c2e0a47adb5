"""Reading and writing of persisted records: fixed-width big-endian fields, length-prefixed bytes, nothing
implicit.

Owns: ``Encoder`` and ``Decoder``, and numbers in keys and names (``hex_number``). Does not own: any record's
layout (each record's own file does) nor checksums of containers of records (frames and objects carry those).

Promise: a ``Decoder`` over arbitrary bytes gives a value or raises ``DecodeError``; it never reads past its
end, never allocates more than its input's size, and never loops.
"""

from __future__ import annotations

import re
import struct

from .checksum import Buffer

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I64 = struct.Struct(">q")
_HEX = re.compile(r"[0-9a-f]{16}")


class DecodeError(ValueError):
    """Bytes do not decode as the record they should be. The layer that knows the file turns it into
    ``DataCorruption``."""


def hex_number(text: str) -> int:
    """The 64-bit number that keys and names carry as 16 lower-case hex digits. ``int`` alone takes signs,
    ``0x``, ``_`` and blanks too, so that two names would stand for one number."""
    if not _HEX.fullmatch(text):
        raise DecodeError(f"{text[:40]!r} is not a number of 16 hex digits")
    return int(text, 16)


class Encoder:
    """Collects fields; ``finish()`` joins them. Values out of a field's range raise ``struct.error`` (a bug
    of the caller)."""

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

    def finish(self) -> bytes:
        return b"".join(self._parts)


class Decoder:
    """Takes fields off the front of a buffer, in the order in which they were written."""

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
        """One byte, 0 or 1: anything else was never written, so taking it for either would hide damage."""
        value = self.u8()
        if value > 1:
            raise DecodeError(f"flag at {self.position - 1} is {value}, neither 0 nor 1")
        return bool(value)

    def raw(self, size: int) -> memoryview:
        start = self.position
        if size < 0 or start + size > self._end:
            raise DecodeError(f"{size} bytes wanted at {start}, {self._end - start} left")
        self.position = start + size
        return self._view[start : start + size]

    def blob(self) -> bytes:
        return bytes(self.raw(self.u32()))

    def text(self) -> str:
        data = bytes(self.raw(self.u16()))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"text at {self.position - len(data)} is not UTF-8") from error

    def rest(self) -> bytes:
        """All that is left: fields that this code does not know, to be written back as they are."""
        return bytes(self.raw(self.remaining))

    def finish(self) -> None:
        """Require that everything was taken: trailing bytes mean another record, or damage."""
        if self.position != self._end:
            raise DecodeError(f"{self._end - self.position} bytes left over at {self.position}")
