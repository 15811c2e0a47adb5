"""Rules H1, H4, H5, H6 and H8: paths, headers, writer ids, ranges and JSON bodies."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.gateway.wire import documents, paths
from tierlog.actors.gateway.wire.documents import (
    ContainerAssignment,
    ContainerMap,
    ContainerStatus,
    HostStatus,
    dump,
)
from tierlog.actors.gateway.wire.errors import RangeNotSatisfiable
from tierlog.actors.gateway.wire.headers import (
    AppendHeaders,
    append_headers,
    is_request_id,
    parse_append_headers,
    parse_number,
    parse_writer,
    writer_text,
)
from tierlog.actors.gateway.wire.paths import Verb
from tierlog.actors.gateway.wire.ranges import (
    Extent,
    RangeRequest,
    parse_content_range,
    parse_range,
    range_header,
    resolve_range,
)
from tierlog.storage_backends.base.errors import InvalidArgument, SegmentTruncated
from tierlog.storage_backends.base.segments import AttributeUpdate, AttributeUpdateKind, SegmentInfo

names = st.lists(st.text("ab.-_#=@+~$:\u00e4\u4e2d", min_size=1, max_size=8), min_size=1, max_size=4).map(
    "/".join
)
numbers = st.integers(0, (1 << 63) - 1)


# --- paths --------------------------------------------------------------------------------------


def test_h1_a_segment_may_be_called_like_a_verb() -> None:
    path = paths.segment_path("app/events/append", Verb.APPEND)

    assert path == "/v1/segments/app/events/append/append"
    assert paths.split_segment_path(path) == ("app/events/append", "append")


def test_h1_a_hash_is_encoded() -> None:
    assert paths.segment_path("app/events#part-7", Verb.BYTES) == "/v1/segments/app/events%23part-7/bytes"


@given(names, st.sampled_from(list(Verb)))
def test_h1_every_name_survives_its_path(name: str, verb: Verb) -> None:
    path = paths.segment_path(name, verb)

    assert path.isascii()
    assert paths.split_segment_path(unquote(path)) == (name, verb.value)


@pytest.mark.parametrize(
    "path", ["/v1/segments/a", "/v1/segments//append", "/v1/other/a/append", "/v1/segments/a/"]
)
def test_h1_what_is_no_segment_s_path(path: str) -> None:
    assert paths.split_segment_path(path) is None


@pytest.mark.parametrize("query", [b"offest=1", b"offset=1&offset=2"])
def test_h1_a_query_is_not_guessed_at(query: bytes) -> None:
    with pytest.raises(InvalidArgument):
        paths.parse_query(query, {"offset": ""})


@pytest.mark.parametrize(
    "text", ["-1", "61", "60.001", "1e1", "", ".5", "1.", "1.0005", "001", "nan", "0x1", "1_0", "\u0661"]
)
def test_h4_seconds_are_digits_in_their_range(text: str) -> None:
    with pytest.raises(InvalidArgument):
        paths.query_seconds({"wait": text}, "wait", 30.0, 60.0)


def test_queries_that_clients_build_are_read() -> None:
    def query(path: str) -> bytes:
        return path.partition("?")[2].encode()

    assert paths.parse_query(query(paths.tail_path("a", 5, wait=1.5)), {"offset": "", "wait": ""}) == {
        "offset": "5",
        "wait": "1.500",
    }
    assert paths.query_flag(
        paths.parse_query(query(paths.tail_path("a", 5, stream=True)), {"offset": "", "stream": ""}), "stream"
    )
    assert (
        paths.query_text(paths.parse_query(query(paths.list_path("a#\u00e4&=+ ")), {"prefix": ""})["prefix"])
        == "a#\u00e4&=+ "
    )
    assert (
        paths.query_writer(
            paths.parse_query(query(paths.last_event_number_path("a", b"\x00&%+")), {"writer_id": ""})
        )
        == b"\x00&%+"
    )
    with pytest.raises(InvalidArgument):
        paths.query_writer({})
    with pytest.raises(InvalidArgument):
        paths.query_text("%ff")
    with pytest.raises(InvalidArgument):
        paths.query_flag({"stream": "1"}, "stream")


# --- headers ------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=64), numbers, st.none() | st.integers(-1, 1 << 62), st.none() | numbers)
def test_h4_an_append_s_headers_survive(
    writer: bytes, event: int, previous: int | None, expected: int | None
) -> None:
    append = AppendHeaders(writer, event, previous, expected)

    raw = [(name.lower().encode(), value.encode()) for name, value in append_headers(append).items()]

    assert parse_append_headers(raw) == append


def test_an_append_without_headers_has_none() -> None:
    assert append_headers(AppendHeaders()) == {}
    assert parse_append_headers([(b"content-type", b"x")]) == AppendHeaders()


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1 ", "0x1", "1_0", "1.0", "9223372036854775808", "\u0661", "1" * 5000]
)
def test_h4_numbers_are_plain_digits_in_their_range(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_number("x", text)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"tierlog-event-number", b"1")],
        [(b"tierlog-previous-event-number", b"1")],
        [(b"tierlog-writer-id", b"w")],
        [(b"tierlog-writer-id", b"w"), (b"tierlog-event-number", b"1"), (b"tierlog-event-number", b"1")],
        [(b"tierlog-writer-id", b""), (b"tierlog-event-number", b"1")],
        [(b"tierlog-writer-id", b"w"), (b"tierlog-event-number", b"-1")],
        [
            (b"tierlog-writer-id", b"w"),
            (b"tierlog-event-number", b"1"),
            (b"tierlog-previous-event-number", b"-2"),
        ],
        [(b"tierlog-expected-offset", b"-1")],
    ],
)
def test_h4_headers_that_make_no_sense_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(InvalidArgument):
        parse_append_headers(headers)


def test_h5_plain_writer_ids_are_themselves() -> None:
    assert writer_text(b"app-7._~") == "app-7._~"
    assert writer_text(b"a b%\xff") == "a%20b%25%FF"


@pytest.mark.parametrize("text", ["", "a b", "%", "%g0", "\u00e4", "a" * 65, "%00" * 65, "a+b", "a/b"])
def test_h5_other_texts_are_no_writer_ids(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_writer("x", text)


def test_h14_request_ids_are_short_and_plain() -> None:
    assert is_request_id("abc-1.2:3")
    assert not any(map(is_request_id, ["", "a b", "a\nb", "\u00e4", "a" * 129, 'a"']))


# --- ranges -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, start, length, extent",
    [
        ("bytes=0-4", 0, 10, Extent(0, 5)),
        ("bytes=3-", 0, 10, Extent(3, 10)),
        ("bytes=-4", 0, 10, Extent(6, 10)),
        ("bytes=-40", 2, 10, Extent(2, 10)),
        ("bytes=8-99", 0, 10, Extent(8, 10)),
        ("bytes= 9-9 ", 0, 10, Extent(9, 10)),
        (range_header(5, 2), 5, 10, Extent(5, 7)),
    ],
)
def test_h6_what_a_range_means(text: str, start: int, length: int, extent: Extent) -> None:
    assert resolve_range(parse_range(text), "a", start, length) == extent


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=5-4",
        "bytes=a-b",
        "bytes=0-1,3-4",
        "lines=0-1",
        "bytes=+1-2",
        "bytes=0--1",
        "Bytes=0-1",
        "bytes=9223372036854775808-",
        f"bytes={'1' * 30}-",
    ],
)
def test_h6_a_malformed_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_range(text)


def test_h6_a_range_past_the_tail_tells_the_length() -> None:
    for text in ("bytes=10-", "bytes=99-100", "bytes=-0"):
        with pytest.raises(RangeNotSatisfiable) as caught:
            resolve_range(parse_range(text), "a", 0, 10, sealed=True)

        assert (caught.value.length, caught.value.sealed) == (10, True)


def test_h6_a_range_before_the_start_tells_the_start() -> None:
    with pytest.raises(SegmentTruncated) as caught:
        resolve_range(RangeRequest(3), "a", 5, 10)

    assert caught.value.start_offset == 5


def test_without_a_range_all_that_can_be_read_is_meant() -> None:
    assert resolve_range(None, "a", 5, 10) == Extent(5, 10)
    assert resolve_range(None, "a", 10, 10).size == 0


def test_content_ranges() -> None:
    assert parse_content_range(Extent(3, 8).content_range(10)) == Extent(3, 8)
    assert parse_content_range("bytes */10") is None
    assert parse_content_range("bytes 5-3/10") is None


# --- documents ----------------------------------------------------------------------------------

UPDATES = [
    AttributeUpdate("a", 1),
    AttributeUpdate("b", -2, AttributeUpdateKind.REPLACE_IF_EQUALS, expected=0),
]


def test_h8_requests_survive() -> None:
    assert documents.parse_create(documents.create_document(7)) == 7
    assert documents.parse_create(documents.create_document(None)) is None
    assert documents.parse_create(b"") is None
    assert documents.parse_truncate(documents.truncate_document(9)) == 9
    assert documents.parse_merge(documents.merge_document(["a", "b"], UPDATES)) == (["a", "b"], UPDATES)
    assert documents.parse_attributes(documents.attributes_document(UPDATES)) == UPDATES
    assert documents.parse_expire_writers(documents.expire_writers_document([b"w", b"\x00"])) == [
        b"w",
        b"\x00",
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b'{"offset":"1"}',
        b'{"offset":true}',
        b'{"offset":1.0}',
        b'{"offset":1,"offset":2}',
        b'{"offset":1,"x":2}',
        b'{"offset":NaN}',
        b'{"offset":' + b"1" * 5000 + b"}",
        b"[" * 100000,
    ],
)
def test_h8_a_request_s_body_is_read_strictly(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        documents.parse_truncate(body)


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"name": "a"},
        {"name": "a", "value": 1, "x": 1},
        {"name": "a", "value": 1, "kind": "no"},
        {"name": "a", "value": 1, "kind": []},
        {"name": 1, "value": 1},
        {"name": "a", "value": 1 << 63},
        {"name": "a", "value": True},
        {"name": "a", "value": 1, "expected": "x"},
    ],
)
def test_h8_attribute_updates_are_checked(update: object) -> None:
    with pytest.raises(InvalidArgument):
        documents.parse_attributes(dump({"updates": [update]}))


def test_h8_a_verb_without_a_body_takes_none() -> None:
    documents.parse_nothing(b"")
    documents.parse_nothing(b"{}")
    with pytest.raises(InvalidArgument):
        documents.parse_nothing(b'{"a":1}')


def test_h8_answers_survive_and_may_have_more_members() -> None:
    info = SegmentInfo("a", 1 << 70, 10, 2, True, {"x": -1}, 5, 3)
    container_map = ContainerMap(
        4, (ContainerAssignment(0, "http://a", 7), ContainerAssignment(1, None, None))
    )
    status = HostStatus(True, False, (ContainerStatus(0, "active"),))

    assert documents.parse_info(dump({**documents.info_document(info), "new": 1})) == info
    assert documents.parse_map(dump({**documents.map_document(container_map), "new": 1})) == container_map
    assert documents.parse_status(dump(documents.status_document(status))) == status
    assert documents.parse_offset(b'{"offset":null}') is None
    assert documents.parse_offset(b'{"offset":5}') == 5
    assert documents.parse_event_number(b'{"event_number":5}') == 5
    assert documents.parse_length(b'{"length":5}') == 5
    assert documents.parse_merged(b'{"offset":5}') == 5
    assert documents.parse_known(b'{"known":5}') == 5
    assert documents.parse_values(b'{"attributes":{"a":5}}') == {"a": 5}
    assert documents.parse_names(b'{"segments":["a"]}') == ["a"]


@pytest.mark.parametrize(
    "parse, body",
    [
        (documents.parse_offset, b"{}"),
        (documents.parse_offset, b'{"offset":true}'),
        (documents.parse_offset, b"5"),
        (documents.parse_length, b"[" * 100_000),
        (documents.parse_values, b'{"attributes":{"a":"5"}}'),
        (documents.parse_names, b'{"segments":[1]}'),
        (documents.parse_info, b'{"attributes":{}}'),
        (documents.parse_info, b'{"attributes":{"a":null}}'),
        (documents.parse_map, b'{"version":1,"containers":[]}'),
        (documents.parse_map, b'{"version":1,"containers":[{"container":1,"url":null,"epoch":null}]}'),
        (documents.parse_map, b'{"version":1,"containers":[7]}'),
        (documents.parse_map, b'{"version":1,"containers":[{"container":0,"url":7,"epoch":null}]}'),
        (documents.parse_status, b'{"ready":true,"draining":false,"containers":[1]}'),
    ],
)
def test_h8_an_answer_that_makes_no_sense_is_a_value_error(parse: object, body: bytes) -> None:
    assert callable(parse)
    with pytest.raises(ValueError):
        parse(body)
