"""How the ranges of a concat become the parts of a multipart upload. Pure functions.

S3 requires 5 MiB to 5 GiB for each part but the last, allows copying ranges only out of objects above 5 MiB,
and allows 10,000 parts. Ranges that are long enough are copied inside the service. Shorter ones are read and
joined with their neighbours, and if those do not suffice, with the beginning of the long range behind them:
less than 15 MiB for a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from ..base.chunk_storage import ChunkRange
from ..base.errors import InvalidArgument

PART_MIN = 5 << 20
PART_MAX = 5 << 30
PARTS_MAX = 10_000


@attrs.frozen
class CopiedPart:
    """A part that the service copies itself."""

    source: ChunkRange


@attrs.frozen
class JoinedPart:
    """A part whose bytes are read and sent, one range after the other."""

    sources: tuple[ChunkRange, ...]


Part = CopiedPart | JoinedPart


def plan_parts(ranges: Sequence[ChunkRange], *, part_max: int = PART_MAX) -> list[Part]:
    """The parts of ``ranges``, in order; empty if the ranges are. Raises ``InvalidArgument`` if they are too
    many."""
    parts = list(_parts([part for part in ranges if part.length], part_max))
    if len(parts) > PARTS_MAX:
        raise InvalidArgument(
            f"{len(ranges)} ranges make {len(parts)} parts, and an upload has at most {PARTS_MAX}: concat "
            f"fewer at a time"
        )

    return parts


def _parts(ranges: Sequence[ChunkRange], part_max: int) -> Iterator[Part]:
    short: list[ChunkRange] = []
    for each in ranges:
        missing = max(0, PART_MIN - sum(part.length for part in short)) if short else 0
        head, rest = _split(each, missing)
        # Above and not at: the service copies ranges only out of objects larger than this.
        if rest.length > PART_MIN:
            if short:
                yield JoinedPart((*short, head))
                short = []
            yield from map(CopiedPart, _cut(rest, part_max))
        else:
            # The rest would be too small to copy: join all of it.
            short.append(each)
            if sum(part.length for part in short) >= PART_MIN:
                yield JoinedPart(tuple(short))
                short = []
    if short:
        yield JoinedPart(tuple(short))


def _cut(whole: ChunkRange, part_max: int) -> Iterator[ChunkRange]:
    """Pieces of at most ``part_max``, none of them too small for a part."""
    while whole.length > part_max:
        # The rest must be long enough too.
        piece, whole = _split(whole, min(part_max, whole.length - PART_MIN - 1))
        yield piece
    yield whole


def _split(whole: ChunkRange, length: int) -> tuple[ChunkRange, ChunkRange]:
    """The first ``length`` bytes, as far as there are, and the rest."""
    length = min(length, whole.length)
    head = ChunkRange(whole.name, whole.offset, length)
    return head, ChunkRange(whole.name, whole.offset + length, whole.length - length)
