"""How ranges become parts: all of them, in order, and no part that the service would refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.errors import InvalidArgument
from tierlog.storage_backends.chunks.s3_plan import PART_MIN, CopiedPart, JoinedPart, Part, plan_parts

MIB = 1 << 20
LENGTHS = st.one_of(
    st.integers(0, 100),
    st.integers(PART_MIN - 2, PART_MIN + 2),
    st.integers(2 * PART_MIN - 2, 2 * PART_MIN + 2),
)
RANGES = st.lists(
    st.builds(
        ChunkRange, st.sampled_from("abc"), st.integers(0, 9), st.one_of(LENGTHS, st.integers(0, 100 * MIB))
    ),
    max_size=12,
)


def sources(part: Part) -> tuple[ChunkRange, ...]:
    return part.sources if isinstance(part, JoinedPart) else (part.source,)


def length(part: Part) -> int:
    return sum(source.length for source in sources(part))


def spans(ranges: list[ChunkRange]) -> list[tuple[str, int, int]]:
    """What the ranges cover, with neighbours joined where one goes on in the same chunk."""
    found: list[tuple[str, int, int]] = []
    for each in ranges:
        end = each.offset + each.length
        if found and found[-1][0] == each.name and found[-1][2] == each.offset:
            found[-1] = (each.name, found[-1][1], end)
        elif each.length:
            found.append((each.name, each.offset, end))
    return found


@given(RANGES, st.sampled_from([12 * MIB, 40 * MIB, 5 << 30]))
def test_the_parts_are_the_ranges_and_no_part_is_refused(ranges: list[ChunkRange], part_max: int) -> None:
    parts = plan_parts(ranges, part_max=part_max)

    assert spans([source for part in parts for source in sources(part)]) == spans(ranges)
    assert all(length(part) >= PART_MIN for part in parts[:-1])
    for part in parts:
        if isinstance(part, CopiedPart):
            assert PART_MIN < part.source.length <= part_max
        else:
            assert 0 < length(part) < 3 * PART_MIN


def test_long_ranges_are_copied_and_short_ones_joined() -> None:
    a, b, c, d = (
        ChunkRange("a", 0, 8 * MIB),
        ChunkRange("b", 0, MIB),
        ChunkRange("c", 0, 20 * MIB),
        ChunkRange("d", 0, 1),
    )

    assert plan_parts([a, b, c, d]) == [
        CopiedPart(a),
        JoinedPart((b, ChunkRange("c", 0, 4 * MIB))),
        CopiedPart(ChunkRange("c", 4 * MIB, 16 * MIB)),
        JoinedPart((d,)),
    ]


def test_more_parts_than_an_upload_has_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="concat fewer at a time"):
        plan_parts([ChunkRange("a", 0, 6 * MIB)] * 10_001)
