"""The header file of the legacy layout: golden files, what each item means, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.legacy import data_name, format_concat

from tierlog.actors.legacy_rolling.header import (
    LegacyChunk,
    LegacyHeader,
    format_chunks,
    format_header,
    header_name,
    is_legacy_file,
    parse_header,
)
from tierlog.storage_backends.base.errors import DataCorruption

GOLDEN = Path(__file__).parents[2] / "golden" / "rolling"


def header(max_size: int, *chunks: tuple[int, str]) -> LegacyHeader:
    return LegacyHeader(max_size, tuple(LegacyChunk(start, name) for start, name in chunks))


FILES = {
    "plain": header(1 << 27, (0, "app/events$offset.0"), (1 << 27, "app/events$offset.134217728")),
    "concat": header(
        100,
        (0, "a$offset.0"),
        (100, "a$offset.100"),
        (150, "b$offset.0"),
        (190, "b$offset.40"),
        (200, "a$offset.200"),
    ),
    "aborted_concat": header(100, (0, "a$offset.0"), (100, "a$offset.100")),
    "nested_concat": header(
        100, (0, "a$offset.0"), (100, "b$offset.0"), (120, "b$offset.20"), (140, "c$offset.0")
    ),
    "no_chunks": header((1 << 62) - 2),
}


def test_the_files_of_a_segment_are_named_after_it() -> None:
    assert header_name("app/events") == "app/events$header"
    assert data_name("app/events", 134217728) == "app/events$offset.134217728"


def test_every_golden_file_has_its_meaning() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_golden_file_is_read(name: str) -> None:
    assert parse_header((GOLDEN / f"{name}.header").read_bytes(), name) == FILES[name]


@pytest.mark.parametrize("name", ["plain", "no_chunks"])
def test_a_header_is_written_byte_for_byte(name: str) -> None:
    assert format_header(FILES[name]) == (GOLDEN / f"{name}.header").read_bytes()


def test_a_header_grows_by_a_concat_item_and_the_header_of_the_source() -> None:
    target = format_header(header(100, (0, "a$offset.0"), (100, "a$offset.100")))
    source = format_header(header(40, (0, "b$offset.0"), (40, "b$offset.40")))
    grown = target + format_concat(2, 150) + source + format_chunks([LegacyChunk(200, "a$offset.200")])

    assert grown == (GOLDEN / "concat.header").read_bytes()


def test_an_empty_header_is_no_segment() -> None:
    assert parse_header(b"", "f") is None


def test_the_first_maxsize_counts_and_keys_have_no_case() -> None:
    assert parse_header(b"MaxSize=5&0=a&CONCAT=1@7&MAXSIZE=nonsense&0=b&", "f") == header(
        5, (0, "a"), (7, "b")
    )


def test_a_value_may_hold_the_sign_between_key_and_value() -> None:
    assert parse_header(b"maxsize=5&0=a=b&", "f") == header(5, (0, "a=b"))


def test_a_concat_item_covers_exactly_its_count_of_files() -> None:
    assert parse_header(b"maxsize=5&concat=1@10&0=a&50=b&", "f") == header(5, (10, "a"), (50, "b"))


def test_data_files_may_be_empty() -> None:
    assert parse_header(b"maxsize=5&0=a&0=b&", "f") == header(5, (0, "a"), (0, "b"))


@pytest.mark.parametrize(
    "data, offset, reason",
    [
        (b"maxsize=5&0=a", 10, "cut short"),
        (b"maxsize=5&&0=a&", 10, "not key=value"),
        (b"maxsize=5&0=&", 10, "not key=value"),
        (b"maxsize=5&=a&", 10, "not key=value"),
        (b"maxsize=5&0&", 10, "not key=value"),
        (b"maxsize=5&x=a&", 10, "not a number"),
        (b"maxsize=5&-1=a&", 10, "not a number"),
        (b"maxsize=5&0x1=a&", 10, "not a number"),
        (b"maxsize=5&9223372036854775808=a&", 10, "not a number"),
        (b"maxsize=5&10=a&9=b&", 15, "before the one in front"),
        (b"maxsize=5&0=a&20=b&concat=1@10&maxsize=5&0=c&", 41, "before the one in front"),
        (b"maxsize=5&concat=1@&0=a&", 10, "count@offset"),
        (b"maxsize=5&concat=@1&0=a&", 10, "count@offset"),
        (b"maxsize=5&concat=1&0=a&", 10, "count@offset"),
        (b"maxsize=&", 0, "not key=value"),
        (b"maxsize=0&", 0, "maxsize is 0"),
        (b"maxsize=many&", 0, "not a number"),
        (b"0=a&", 0, "no maxsize"),
        (b"maxsize=5&0=\xff&", 10, "not UTF-8"),
    ],
)
def test_malformed_headers_are_corruption_with_their_offset(data: bytes, offset: int, reason: str) -> None:
    with pytest.raises(DataCorruption, match=reason) as refused:
        parse_header(data, "app/events$header")

    assert (refused.value.file, refused.value.offset) == ("app/events$header", offset)


@pytest.mark.parametrize(
    "name, expected",
    [("a$header", True), ("a$offset.17", True), ("a$offset.x", False), ("a$header2", False), ("a", False)],
)
def test_files_of_the_layout_are_distinguished_from_segments(name: str, expected: bool) -> None:
    assert is_legacy_file(name) is expected


names = st.text(st.characters(exclude_characters="&", exclude_categories=["Cs"]), min_size=1, max_size=12)
numbers = st.integers(0, (1 << 63) - 1)
headers = st.builds(
    lambda size, starts, names: LegacyHeader(size, tuple(map(LegacyChunk, sorted(starts), names))),
    st.integers(1, (1 << 63) - 1),
    st.lists(numbers, max_size=5),
    st.lists(names, min_size=5, max_size=5),
)


@given(headers, headers)
def test_an_appended_source_is_moved_behind_its_target(target: LegacyHeader, source: LegacyHeader) -> None:
    end = max([chunk.start for chunk in target.chunks], default=0)
    data = format_header(target) + format_concat(len(source.chunks), end) + format_header(source)
    given_up = bool(source.chunks) and source.chunks[0].start != 0
    moved = tuple(LegacyChunk(chunk.start + (0 if given_up else end), chunk.name) for chunk in source.chunks)
    if given_up and moved[0].start < end:
        with pytest.raises(DataCorruption):
            parse_header(data, "f")
    else:
        assert parse_header(data, "f") == LegacyHeader(target.max_size, target.chunks + moved)
