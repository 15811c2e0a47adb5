"""How the ranges of a concat become the parts of a multipart upload. Pure functions.

Owns: the rules of the service: each part but the last has 5 MiB at least and 5 GiB at most, a range can only
be copied out of an object above 5 MiB, and there are 10,000 parts at most. Does not own: requests
(``s3_concat.py``).

What is long enough is copied inside the service and never comes here. What is too short is read and joined
with its neighbours, and where those do not suffice, with the beginning of the long range behind them: fewer
than 15 MiB for a part.
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
    """A part that the service copies by itself."""

    source: ChunkRange


@attrs.frozen
class JoinedPart:
    """A part whose bytes are read and sent, one range after the other."""

    sources: tuple[ChunkRange, ...]


Part = CopiedPart | JoinedPart


def plan_parts(ranges: Sequence[ChunkRange], *, part_max: int = PART_MAX) -> list[Part]:
    """The parts, in order, that together are ``ranges``. None if there is no byte. ``InvalidArgument`` if
    they are too many."""
    parts = list(_parts([part for part in ranges if part.length], part_max))
    if len(parts) > PARTS_MAX:
        raise InvalidArgument(
            f"{len(ranges)} ranges make {len(parts)} parts, and an upload has {PARTS_MAX} at most: concat "
            f"fewer at a time"
        )

    return parts


def _parts(ranges: Sequence[ChunkRange], part_max: int) -> Iterator[Part]:
    short: list[ChunkRange] = []
    for each in ranges:
        missing = max(0, PART_MIN - sum(part.length for part in short)) if short else 0
        head, rest = _split(each, missing)
        if rest.length > PART_MIN:
            if short:
                yield JoinedPart((*short, head))
                short = []
            yield from map(CopiedPart, _cut(rest, part_max))
        else:
            # Too little would be left to be copied: take it all.
            short.append(each)
            if sum(part.length for part in short) >= PART_MIN:
                yield JoinedPart(tuple(short))
                short = []
    if short:
        yield JoinedPart(tuple(short))


def _cut(whole: ChunkRange, part_max: int) -> Iterator[ChunkRange]:
    """Pieces of at most ``part_max``, none of them too small for a part."""
    while whole.length > part_max:
        # What is left behind must be long enough too.
        piece, whole = _split(whole, min(part_max, whole.length - PART_MIN - 1))
        yield piece
    yield whole


def _split(whole: ChunkRange, length: int) -> tuple[ChunkRange, ChunkRange]:
    """The first ``length`` bytes, as far as there are, and the rest."""
    length = min(length, whole.length)
    head = ChunkRange(whole.name, whole.offset, length)
    return head, ChunkRange(whole.name, whole.offset + length, whole.length - length)
