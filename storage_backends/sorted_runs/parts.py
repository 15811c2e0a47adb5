"""A whole run in memory: read in parts, and verified in slices of the loop (rule M5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from anyio.lowlevel import checkpoint

from ..base.checksum import Buffer, crc32c

_PART_BYTES = 16 << 20
_SLICE_BYTES = 4 << 20


def parts_of(length: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each part of ``length`` bytes."""
    return ((start, min(_PART_BYTES, length - start)) for start in range(0, length, _PART_BYTES))


async def crc32c_in_slices(buffers: Iterable[Buffer]) -> int:
    """As ``crc32c_of``; the loop gets a turn about every millisecond."""
    crc = done = 0
    for buffer in buffers:
        view = memoryview(buffer)
        for start in range(0, len(view), _SLICE_BYTES):
            part = view[start : start + _SLICE_BYTES]
            crc = crc32c(part, crc)
            # Many small buffers take as long as a large one.
            done += len(part)
            if done >= _SLICE_BYTES:
                done = 0
                await checkpoint()
    return crc
