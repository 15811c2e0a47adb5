"""Segments of the legacy layout that lie in long-term storage before the first opening: their files and
content.

The files are as that layout's software may leave them: headers with and without joined sources, files that
were truncated away in front, files that are longer than their part, a segment without a header. They are
never damaged: an import trusts what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

import attrs

from tierlog.actors.legacy_rolling.header import (
    LegacyChunk,
    LegacyHeader,
    format_header,
    header_name,
    segment_of_file,
)
from tierlog.storage_backends.chunks.memory import MemoryChunk

from .model import Segment
from .settings import ChunksKind

if TYPE_CHECKING:
    from .world import Site


def data_name(segment: str, start: int) -> str:
    """The name of the data file that begins at ``start``."""
    return f"{segment}$offset.{start}"


def format_concat(count: int, offset: int) -> bytes:
    """The item before the header of a source with ``count`` data files that begins at ``offset``."""
    return f"concat={count}@{offset}&".encode()


SHARE = 0.18
"""The share of the seeds that have any."""
SEGMENTS_MAX = 3
PARTS_MAX = 4
PART_SIZES = (1, 20, 150, 400, 1200)
MAX_SIZES = (200, 1000, 1 << 20)


@attrs.frozen
class LegacyFiles:
    """One segment. ``lost`` bytes were truncated away in front, with their file; from part ``joined`` on it
    is a source's, appended."""

    name: str
    parts: tuple[bytes, ...]
    sealed: bool = False
    has_header: bool = True
    lost: int = 0
    joined: int | None = None
    spare: bytes = b""
    """What each data file but the last one has behind its part: bytes that do not exist."""
    max_size: int = 1 << 20

    @property
    def imported(self) -> Segment:
        """What an import makes of it."""
        return Segment(b"".join(self.parts), self.lost, self.sealed)

    @property
    def header(self) -> str:
        return header_name(self.name) if self.has_header else ""

    @property
    def _source(self) -> str:
        """Whose files the joined ones were."""
        return f"{self.name}#joined"

    @property
    def takers(self) -> tuple[str, ...]:
        """The segments for which those data files were made that an import takes (rule S14)."""
        return tuple(sorted({segment_of_file(file) for file, data in self.data_files.items() if data}))

    @property
    def data_files(self) -> dict[str, bytes]:
        if not self.has_header:
            return {self.name: b"".join(self.parts)}

        last = len(self.parts) - 1
        return {
            chunk.name: part if index == last else part + self.spare
            for index, (chunk, part) in enumerate(
                zip(self._chunks()[-len(self.parts) :], self.parts, strict=True)
            )
        }

    @property
    def files(self) -> dict[str, bytes]:
        return {**({self.header: self.header_bytes} if self.header else {}), **self.data_files}

    @property
    def read_only(self) -> str:
        """The file whose mode marks the segment as sealed; "" if it is not."""
        return (self.header or self.name) if self.sealed else ""

    @property
    def header_bytes(self) -> bytes:
        chunks = self._chunks()
        if self.joined is None:
            return format_header(LegacyHeader(self.max_size, chunks))

        count = len(self.parts) - self.joined
        own, source = chunks[:-count], chunks[-count:]
        begin = source[0].start
        moved = LegacyHeader(
            self.max_size, tuple(LegacyChunk(chunk.start - begin, chunk.name) for chunk in source)
        )
        return (
            format_header(LegacyHeader(self.max_size, own))
            + format_concat(len(source), begin)
            + format_header(moved)
        )

    def _chunks(self) -> tuple[LegacyChunk, ...]:
        """All that the header names, with starts in the segment."""
        found = [LegacyChunk(0, data_name(self.name, 0))] if self.lost else []
        offset, begin = self.lost, 0
        for index, part in enumerate(self.parts):
            if index == self.joined:
                begin = offset
            owner = self.name if self.joined is None or index < self.joined else self._source
            found.append(LegacyChunk(offset, data_name(owner, offset - begin)))
            offset += len(part)
        return tuple(found)


def draw(random: Random, families: Sequence[Sequence[str]]) -> tuple[LegacyFiles, ...]:
    """None for most seeds."""
    if random.random() >= SHARE:
        return ()

    names = random.sample([name for family in families for name in family], random.randint(1, SEGMENTS_MAX))
    plain = random.choice((None, None, *names))
    return tuple(_draw_one(random, name, has_header=name != plain) for name in names)


def _draw_one(random: Random, name: str, *, has_header: bool) -> LegacyFiles:
    count = random.choice((0, *range(1, PARTS_MAX + 1), *range(1, PARTS_MAX + 1)))
    parts = tuple(_bytes(f"[{name} {index}]", random.choice(PART_SIZES)) for index in range(count))
    return LegacyFiles(
        name,
        parts,
        sealed=random.random() < 0.4,
        has_header=has_header,
        lost=random.choice((0, 0, 0, 70)) if parts and has_header else 0,
        joined=random.randrange(1, count) if has_header and count > 1 and random.random() < 0.3 else None,
        spare=random.choice((b"", b"", b"[spare]")),
        max_size=random.choice(MAX_SIZES),
    )


def _bytes(tag: str, size: int) -> bytes:
    return (tag.encode() * (size // len(tag) + 1))[:size]


def lay(site: Site, segments: Sequence[LegacyFiles]) -> None:
    """Put the files where the site's long-term storage is, durable, as what was there for years.

    No read of a data file has a flipped bit: nothing would tell an import that it was given other bytes than
    there are.
    """
    site.faults.never_flipped = frozenset(file for segment in segments for file in segment.data_files)
    for segment in segments:
        for file, data in segment.files.items():
            read_only = file == segment.read_only
            if site.kind.chunks is ChunksKind.FOLDER:
                site.disk.put(f"/data/lts/{file}", data, read_only=read_only)
            else:
                site.chunk_state.chunks[file] = MemoryChunk(bytearray(data), read_only)
