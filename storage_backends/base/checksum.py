"""CRC32C, the checksum of every persisted byte.

In hardware it costs about 0.2 us for 1 KiB and 10 us for 256 KiB, so nothing is left unchecked to save time.
"""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC32C of ``data``, continuing from the running ``value``; an unsigned 32-bit integer."""
    return _crc32c(data, value)


def crc32c_of(buffers: Iterable[Buffer], value: int = 0) -> int:
    """The CRC32C of several buffers as if they were joined."""
    for buffer in buffers:
        value = _crc32c(buffer, value)
    return value
