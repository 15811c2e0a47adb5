"""Rules H1, H4, H5, H6 and H8: paths, headers, writer ids, ranges and JSON bodies."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.gateway.wire import bodies, paths, table_bodies
from tierlog.actors.gateway.wire.bodies import (
    COMMIT_BYTES_MAX,
    ContainerAssignment,
    ContainerMap,
    ContainerStatus,
    HostStatus,
    decode_answer,
    decode_request,
    encode_json,
    request_in_steps,
)
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
    parse_content_range,
    parse_range,
    range_header,
    resolve_range,
)
from tierlog.storage_backends.base.errors import InvalidArgument
from tierlog.storage_backends.base.list_pages import SEGMENTS, TRANSACTIONS, PageAsked
from tierlog.storage_backends.base.names import NAME_BYTES_MAX
from tierlog.storage_backends.base.segment_layout import ChunkExtent, SegmentLayout, StoragePlace
from tierlog.storage_backends.base.segments import AttributeUpdate, AttributeUpdateKind, SegmentInfo
from tierlog.storage_backends.base.transactions import (
    LEASE_DEFAULT,
    PARTS_MAX,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
)

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
def test_h1_paths_that_are_not_of_a_segment(path: str) -> None:
    assert paths.split_segment_path(path) is None


@pytest.mark.parametrize("query", [b"offest=1", b"offset=1&offset=2"])
def test_h1_a_query_is_not_guessed_at(query: bytes) -> None:
    with pytest.raises(InvalidArgument):
        paths.parse_query(query, ["offset"])


@pytest.mark.parametrize(
    "text", ["-1", "61", "60.001", "1e1", "", ".5", "1.", "1.0005", "001", "nan", "0x1", "1_0", "\u0661"]
)
def test_h4_seconds_are_digits_in_their_range(text: str) -> None:
    with pytest.raises(InvalidArgument):
        paths.query_seconds({"wait": text}, "wait", 30.0, 60.0)


def test_queries_that_clients_build_are_read() -> None:
    def query(path: str) -> bytes:
        return path.partition("?")[2].encode()

    assert paths.parse_query(query(paths.tail_path("a", 5, wait=1.5)), ["offset", "wait"]) == {
        "offset": "5",
        "wait": "1.500",
    }
    assert paths.query_flag(
        paths.parse_query(query(paths.tail_path("a", 5, stream=True)), ["offset", "stream"]), "stream"
    )
    prefix = "a#\u00e4&=+ "
    for listing, listed in ((SEGMENTS, paths.SEGMENTS), (TRANSACTIONS, paths.TRANSACTIONS)):
        _, token = PageAsked.of(listing, prefix, None, 1).page([(["b", "c"], None)], str)
        for asked in (PageAsked(listing, prefix, None, "", 7), PageAsked(listing, prefix, token, "c", 7)):
            path = paths.page_path(listed, asked, 7)
            assert path.startswith(f"{listed}?")
            found = paths.parse_query(query(path), ["prefix", "token", "limit"])
            assert paths.query_page(listing, found) == asked
    assert (
        paths.query_writer(
            paths.parse_query(query(paths.last_event_number_path("a", b"\x00&%+")), ["writer_id"])
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
def test_h4_an_appends_headers_survive(
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
def test_h4_contradictory_headers_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
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


def test_content_ranges() -> None:
    assert parse_content_range(Extent(3, 8).content_range(10)) == Extent(3, 8)
    assert parse_content_range("bytes */10") is None
    assert parse_content_range("bytes 5-3/10") is None


# --- bodies -------------------------------------------------------------------------------------

TOKEN = TransactionToken("query größe", 7)
PARTS = (StagedPart("app/events#txn.t-1.p0", 5), StagedPart("app/events#txn.t-1.p1", 0))
OPEN = TransactionInfo("t-1", "app/events", TransactionState.OPEN, TOKEN, 60.5, 12.25, "", None, 5, PARTS)
COMMITTED = TransactionInfo("t:2", "a", TransactionState.COMMITTED, None, 1.0, 86_400.0, "", 9, 5)
ABORTED = TransactionInfo("t_3", "a", TransactionState.ABORTED, None, 1.0, 0.0, "its lease was over", None, 0)
UPDATES = [
    AttributeUpdate("a", 1),
    AttributeUpdate("b", -2, AttributeUpdateKind.REPLACE_IF_EQUALS, expected=0),
]


def test_h8_optional_members_have_defaults() -> None:
    assert decode_request(b"", bodies.Create).rolling_size is None
    assert decode_request(b'{"rolling_size":null}', bodies.Create).rolling_size is None
    assert decode_request(b"", bodies.Nothing) == bodies.Nothing()
    assert decode_request(b'{"transaction_id":"t"}', bodies.Begin).lease == LEASE_DEFAULT
    assert decode_request(b'{"transaction_id":"t","lease":60}', bodies.Begin).lease == 60.0
    assert decode_request(b'{"transaction_id":"t"}', bodies.Abort).reason == ""


def test_h8_values_survive_their_bodies() -> None:
    assert bodies.update_values(bodies.update_bodies(UPDATES)) == UPDATES
    assert bodies.token_value(bodies.token_body(TOKEN)) == TOKEN
    assert bodies.token_value(bodies.token_body(None)) is None


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
        b'{"offset":-1}',
        b'{"offset":NaN}',
        b'{"offset":' + b"1" * 5000 + b"}",
        b"[" * 100000,
        b'{"x":' + b"[" * 100000,
    ],
)
def test_h8_a_requests_body_is_read_strictly(body: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_request(body, bodies.Truncate)

    assert "\n" not in str(caught.value)


def test_h8_between_decoding_and_the_check_for_repeated_members_others_get_a_turn() -> None:
    """Each takes milliseconds for the largest bodies."""
    assert list(request_in_steps(b'{"offset":7}', bodies.Truncate)) == [None, bodies.Truncate(7)]
    steps = request_in_steps(b'{"offset":7,"offset":7}', bodies.Truncate)
    assert next(steps) is None
    with pytest.raises(InvalidArgument, match="given twice"):
        next(steps)


def test_h9_a_body_of_very_many_names_is_refused_before_it_is_decoded() -> None:
    """A mebibyte of them takes 50 ms, and the event loop waits for it."""
    allowed = b"{" + b'"rows":[],' * 5_000 + b'"rows":[]}'
    with pytest.raises(InvalidArgument, match="given twice"):
        decode_request(allowed, table_bodies.UpdateRows)
    with pytest.raises(InvalidArgument, match="names and texts"):
        decode_request(allowed * 30, table_bodies.UpdateRows)


@pytest.mark.parametrize(
    "body, message",
    [
        (b'{"offset":"1"}', "the body: Expected `int`, got `str` - at `$.offset`"),
        (b'{"offset":-1}', "the body: Expected `int` >= 0 - at `$.offset`"),
        (b"", "the body: Object missing required field `offset`"),
        (b'{"offset":1,"ofset":1}', "the body: Object contains unknown field `ofset`"),
        (b'{"offset":1,"offset":1}', "the body: a member is given twice among offset, offset"),
    ],
)
def test_h8_a_refusal_names_the_member(body: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_request(body, bodies.Truncate)

    assert str(caught.value) == message


@pytest.mark.parametrize("body", [b'{"\\u001b[2J\\n":1}', b'{"%s":1}' % (b"x" * 100_000)])
def test_h8_a_refusal_repeats_no_control_characters_and_no_long_names(body: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_request(body, bodies.Truncate)

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


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
        decode_request(encode_json({"updates": [update]}), bodies.Attributes)


def test_h8_a_verb_without_a_body_takes_none() -> None:
    with pytest.raises(InvalidArgument):
        decode_request(b'{"a":1}', bodies.Nothing)


EXTENT = ChunkExtent(10, "containers/0000/0000000000000001/a", 3 << 20, 1, bytes(8))
LAYOUT = SegmentLayout(1, 5, 0, 1 << 40, (EXTENT,), 7, 60.0, StoragePlace("ab", "/data/lts", "", "eu"))
ANSWERS = [
    SegmentInfo("a", 1 << 70, 10, 2, True, {"x": -1}, 5, 3),
    ContainerMap(4, (ContainerAssignment(0, "http://a", 7), ContainerAssignment(1, None, None))),
    HostStatus(True, False, (ContainerStatus(0, "active"),)),
    bodies.Unconfirmed(0, "the folder was adopted", 5, 7),
    bodies.Appended(None),
    bodies.Appended(5),
    bodies.EventNumber(5),
    bodies.Length(5),
    bodies.Merged(5),
    bodies.KnownWriters(5),
    bodies.AttributeValues({"a": 5}),
    bodies.AppendStarts([0, 5]),
    LAYOUT,
    bodies.SegmentNames(["a"]),
    bodies.SegmentNames([], "t"),
    bodies.Staged("a#txn.t.p"),
    CommitResult(True, 5, 7),
    CommitResult(False, None, 0),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_h8_answers_survive_and_may_have_more_members(answer: object) -> None:
    document = {**json.loads(encode_json(answer)), "new": 1}

    assert decode_answer(json.dumps(document).encode(), type(answer)) == answer


@pytest.mark.parametrize(
    "kind, body",
    [
        (bodies.Appended, b"{}"),
        (bodies.Appended, b'{"offset":true}'),
        (bodies.Appended, b"5"),
        (bodies.Length, b"[" * 100_000),
        (bodies.Length, b'{"x":' + b"[" * 100_000),
        (bodies.AttributeValues, b'{"attributes":{"a":"5"}}'),
        (bodies.SegmentNames, b'{"segments":[1]}'),
        (SegmentLayout, encode_json(LAYOUT).replace(b"AAAAAAAAAAA=", b"AAA=")),
        (SegmentLayout, encode_json(LAYOUT).replace(b"0000/", b"../")),
        (SegmentLayout, encode_json(LAYOUT).replace(b'"containers', b'"/containers')),
        (SegmentLayout, encode_json(LAYOUT).replace(b'"block":1', b'"block":2')),
        (SegmentLayout, encode_json(LAYOUT).replace(b'"block":1', b'"block":-1')),
        (SegmentInfo, b'{"attributes":{}}'),
        (SegmentInfo, b'{"attributes":{"a":null}}'),
        (ContainerMap, b'{"version":1,"containers":[7]}'),
        (ContainerMap, b'{"version":1,"containers":[{"container":0,"url":7,"epoch":null}]}'),
        (HostStatus, b'{"ready":true,"draining":false,"containers":[1]}'),
        (bodies.Transactions, b'{"transactions":{}}'),
        (bodies.Transactions, b'{"transactions":[[]]}'),
        (bodies.Staged, b'{"segment":null}'),
        (CommitResult, b'{"applied":1,"offset":5,"length":5}'),
        (CommitResult, b'{"applied":true,"length":5}'),
    ],
)
def test_h8_an_inconsistent_answer_is_a_value_error(kind: type[object], body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_answer(body, kind)


@pytest.mark.parametrize(
    "body",
    [
        b'{"version":1,"containers":[]}',
        b'{"version":1,"containers":[{"container":1,"url":null,"epoch":null}]}',
    ],
)
def test_h8_a_map_lists_every_container_once_in_order(body: bytes) -> None:
    with pytest.raises(ValueError, match="every container"):
        bodies.decode_map(body)


# --- transactions (rule H17) ----------------------------------------------------------------------


def test_h1_a_transactions_id_and_a_prefix_survive_their_queries() -> None:
    path, _, query = paths.transaction_info_path("a#b", "t.1:2_-").partition("?")

    assert paths.split_segment_path(unquote(path)) == ("a#b", "transaction-info")
    assert paths.query_transaction(paths.parse_query(query.encode(), ["transaction_id"])) == "t.1:2_-"
    with pytest.raises(InvalidArgument, match="transaction_id"):
        paths.query_transaction({})


@pytest.mark.parametrize(
    "kind, body",
    [
        (bodies.Begin, b""),
        (bodies.Begin, b"{}"),
        (bodies.Begin, b'{"transaction_id":"t","tokens":1}'),
        (bodies.Begin, b'{"transaction_id":7}'),
        (bodies.Begin, b'{"transaction_id":"t","transaction_id":"t"}'),
        (bodies.Begin, b'{"transaction_id":"t","token":null}'),
        (bodies.Begin, b'{"transaction_id":"t","token":{}}'),
        (bodies.Begin, b'{"transaction_id":"t","token":{"writer":"w"}}'),
        (bodies.Begin, b'{"transaction_id":"t","token":{"writer":"w","epoch":1,"x":1}}'),
        (bodies.Begin, b'{"transaction_id":"t","token":{"writer":"w","epoch":true}}'),
        (bodies.Begin, b'{"transaction_id":"t","token":{"writer":"w","epoch":-1}}'),
        (bodies.Begin, b'{"transaction_id":"t","token":{"writer":"w","epoch":9223372036854775808}}'),
        (bodies.Begin, b'{"transaction_id":"t","token":{"writer":"\\ud800","epoch":1}}'),
        (bodies.Begin, b'{"transaction_id":"t","token":["w",1]}'),
        (bodies.Begin, b'{"transaction_id":"t","lease":true}'),
        (bodies.Begin, b'{"transaction_id":"t","lease":"60"}'),
        (bodies.Begin, b'{"transaction_id":"t","lease":0}'),
        (bodies.Begin, b'{"transaction_id":"t","lease":NaN}'),
        (bodies.Begin, b'{"transaction_id":"t","lease":1e999}'),
        (bodies.Begin, b'{"transaction_id":"t","lease":' + b"9" * 400 + b"}"),
        (bodies.Stage, b'{"transaction_id":"t"}'),
        (bodies.Stage, b'{"transaction_id":"t","part":7}'),
        (bodies.Commit, b'{"transaction_id":"t"}'),
        (bodies.Commit, b'{"transaction_id":"t","parts":{}}'),
        (bodies.Commit, b'{"transaction_id":"t","parts":["a"]}'),
        (bodies.Commit, b'{"transaction_id":"t","parts":[{"name":"a"}]}'),
        (bodies.Commit, b'{"transaction_id":"t","parts":[{"name":"a","length":1,"x":1}]}'),
        (bodies.Commit, b'{"transaction_id":"t","parts":[{"name":7,"length":1}]}'),
        (bodies.Commit, b'{"transaction_id":"t","parts":[{"name":"a","length":"1"}]}'),
        (bodies.Commit, b'{"transaction_id":"t","parts":[{"name":"a","length":1.0}]}'),
        (bodies.Commit, b'{"transaction_id":"t","parts":[{"name":"a","length":-1}]}'),
        (bodies.Commit, b'{"transaction_id":"t","parts":[{"name":"a","length":9223372036854775808}]}'),
        (bodies.Abort, b'{"transaction_id":"t","reason":null}'),
        (bodies.Abort, b'{"transaction_id":"t","why":"x"}'),
    ],
)
def test_h8_a_request_of_another_form_is_refused(kind: type[object], body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        decode_request(body, kind)


def test_h17_the_largest_commit_fits_into_its_bound_with_every_character_escaped() -> None:
    name = "\u4e2d" * (NAME_BYTES_MAX // 3)
    largest = bodies.Commit(
        "t" * 96, [bodies.Part(name, (1 << 63) - 1)] * PARTS_MAX, bodies.Token("ä" * 62, (1 << 63) - 1)
    )

    assert COMMIT_BYTES_MAX / 2 < len(json.dumps(json.loads(encode_json(largest)))) <= COMMIT_BYTES_MAX


@pytest.mark.parametrize("info", [OPEN, COMMITTED, ABORTED], ids=lambda info: info.state.value)
def test_h8_a_transaction_survives_and_may_have_more_members(info: TransactionInfo) -> None:
    document = {**json.loads(encode_json(info)), "new": 1}

    assert decode_answer(encode_json(document), TransactionInfo) == info
    both = encode_json({"transactions": [document, document]})
    assert decode_answer(both, bodies.Transactions).transactions == [info, info]


@pytest.mark.parametrize(
    "member, value",
    [
        ("state", "unknown"),
        ("state", None),
        ("token", ["w", 1]),
        ("token", {"writer": "w"}),
        ("token", {"writer": "", "epoch": 1}),
        ("lease", None),
        ("lease", True),
        ("lease", -1),
        ("expires_in", float("nan")),
        ("expires_in", float("inf")),
        ("expires_in", 10**400),
        ("offset", "5"),
        ("length", 5.0),
        ("reason", None),
        ("staged", [7]),
        ("staged", [{"name": "a"}]),
        ("staged", None),
    ],
)
def test_h8_an_inconsistent_transaction_is_a_value_error(member: str, value: Any) -> None:
    document = {**json.loads(encode_json(OPEN)), member: value}

    with pytest.raises(ValueError):
        decode_answer(json.dumps(document).encode(), TransactionInfo)
    del document[member]
    if member != "staged":  # without it there is none
        with pytest.raises(ValueError):
            decode_answer(json.dumps(document).encode(), TransactionInfo)
