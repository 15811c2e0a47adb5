"""A segment whose bytes lie in chunks in memory, for readers of long-term storage itself."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

from tierlog.storage_backends.base.checksum import BLOCK, crc32c
from tierlog.storage_backends.base.errors import ChunkNotFound
from tierlog.storage_backends.base.segment_layout import ChunkExtent, SegmentLayout, StoragePlace

PLACE = StoragePlace("ab" * 16, "/somewhere")


class MemoryStorage:
    """A ``DirectStorage``."""

    def __init__(self, piece_bytes: int = BLOCK, ahead: int = 0) -> None:
        self.chunks: dict[str, bytes] = {}
        self.piece_bytes, self.ahead = piece_bytes, ahead
        self.asked: list[tuple[str, int, int]] = []

    def read_into(self, chunk: str, offset: int, target: memoryview) -> int:
        self.asked.append((chunk, offset, len(target)))
        if chunk not in self.chunks:
            raise ChunkNotFound(f"there is no chunk {chunk}", chunk=chunk)
        data = self.chunks[chunk][offset : offset + len(target)]
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        pass


def stored(
    data: bytes, sizes: Sequence[int], storage: MemoryStorage, name: str = "c"
) -> tuple[ChunkExtent, ...]:
    """The extents of ``data`` in chunks of ``sizes``, which are in ``storage`` then, with garbage behind."""
    assert sum(sizes) <= len(data)
    extents = []
    for number, (start, size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False)):
        chunk = data[start : start + size]
        crcs = [crc32c(chunk[at : at + BLOCK]) for at in range(0, size, BLOCK)]
        storage.chunks[f"{name}{number}"] = chunk + b"garbage"
        extents.append(ChunkExtent(start, f"{name}{number}", size, 0, struct.pack(f">{len(crcs)}I", *crcs)))
    return tuple(extents)


class Layouts:
    """A ``LayoutSource``: answers in turn, and the last one from then on."""

    def __init__(self, *answers: Sequence[ChunkExtent], segment_id: int = 1, start_offset: int = 0) -> None:
        self.answers = list(answers)
        self.segment_id, self.start_offset = segment_id, start_offset
        self.page = 1_000
        self.asked: list[tuple[int, int]] = []

    def segment_layout(self, name: str, start: int, end: int) -> SegmentLayout:
        self.asked.append((start, end))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        inside = tuple(each for each in answer if each.end > start and each.begin < end)
        page = inside[: self.page]
        following = page[-1].end if len(page) < len(inside) else None
        flushed = answer[-1].end if answer else 0
        return SegmentLayout(self.segment_id, 1, self.start_offset, flushed, page, following, 60.0, PLACE)
