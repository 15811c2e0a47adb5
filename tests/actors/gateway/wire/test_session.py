"""Rules N1 and N2: the frames of a session, and what is refused."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.gateway.wire.session import (
    FRAME_HEAD_BYTES,
    HEAD_BYTES_MAX,
    LAST,
    PAYLOAD_BYTES_MAX,
    AnswerFrame,
    Frame,
    FrameDecoder,
    FrameEncoder,
    HeadCache,
    Kind,
    RequestFrame,
    RequestHead,
    answer_parts,
    decode_answer,
    decode_end,
    decode_request,
    joined_head,
    number_parts,
    request_parts,
)
from tierlog.storage_backends.base.errors import InvalidArgument, TierlogError, TooLarge

HEAD = joined_head(["POST", "/v1/batch", "content-type", "a/b"])
GOLDEN = bytes.fromhex(
    # size, sequence number, call, kind, flags, payload
    "0000002d" "00000000" "00000001" "01" "00"
    "00000005" "00010000" "0000001f" "504f5354002f76312f626174636800636f6e74656e742d7479706500612f62" "6869"
    "00000003" "00000001" "00000001" "03" "01" "213f21"
    "00000010" "00000002" "00000001" "02" "01" "00c8" "00000006" "610062006300" "7b7d2121"
    "00000004" "00000003" "00000001" "04" "00" "00000080"
    "00000000" "00000004" "00000001" "05" "00"
    "00000004" "00000005" "00000001" "06" "00" "68616c66"
    "00000007" "00000006" "00000000" "07" "00" "00000001" "627965"
)  # fmt: skip


def frames() -> bytes:
    encoder = FrameEncoder()
    return b"".join(
        (
            encoder.frame(1, Kind.REQUEST, request_parts(HEAD, 5, 64 << 10, b"hi")),
            encoder.frame(1, Kind.BODY, (b"!?!",), last=True),
            encoder.frame(1, Kind.ANSWER, answer_parts(200, [(b"a", b"b"), (b"c", b"")], b"{}!!"), last=True),
            encoder.frame(1, Kind.WINDOW, number_parts(128)),
            encoder.frame(1, Kind.CANCEL),
            encoder.frame(1, Kind.BROKEN, (b"half",)),
            encoder.frame(0, Kind.END, number_parts(1, "bye")),
        )
    )


def decoded(*pieces: bytes) -> list[Frame]:
    decoder = FrameDecoder()
    return [frame for piece in pieces for frame in decoder.feed(piece)]


def receive(decoder: FrameDecoder, data: bytes, found: list[Frame], *, is_direct: bool) -> int:
    """Give it ``data``, directly only as far as it has memory for it. Returns how many bytes it took."""
    if is_direct and decoder.rest:
        data = data[: len(decoder.rest)]
        decoder.rest[: len(data)] = data
        found += decoder.placed(len(data))
    else:
        found += decoder.feed(data)
    return len(data)


def test_n1_the_bytes_of_each_kind_of_frame() -> None:
    assert frames() == GOLDEN


def test_n1_a_frame_is_read_back() -> None:
    request, body, answer, window, cancel, broken, end = decoded(GOLDEN)

    head = RequestHead("POST", b"/v1/batch", ((b"content-type", b"a/b"),))
    assert decode_request(request.payload, HeadCache()) == RequestFrame(head, 5, 64 << 10, b"hi")
    assert body == Frame(1, Kind.BODY, True, b"!?!")
    assert decode_answer(answer.payload) == AnswerFrame(200, ((b"a", b"b"), (b"c", b"")), b"{}!!")
    assert (window.kind, window.payload) == (Kind.WINDOW, b"\0\0\0\x80")
    assert (cancel.kind, cancel.payload, broken.payload) == (Kind.CANCEL, b"", b"half")
    assert decode_end(end.payload) == (1, "bye")


@given(st.lists(st.integers(0, len(GOLDEN)), max_size=8))
def test_n1_frames_do_not_depend_on_how_their_bytes_arrive(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(GOLDEN)]

    assert decoded(*(GOLDEN[start:end] for start, end in pairwise(bounds))) == decoded(GOLDEN)


@given(st.lists(st.tuples(st.integers(1, 2000), st.booleans()), max_size=8))
def test_n1_a_body_comes_into_the_memory_that_is_chosen_for_it(arrivals: list[tuple[int, bool]]) -> None:
    """``arrivals``: bytes that come at once, and whether they are received where they stay."""
    encoder, body = FrameEncoder(), bytes(range(256)) * 8
    sent = b"".join(
        (
            encoder.frame(1, Kind.BODY, (body[:1000],)),
            encoder.frame(2, Kind.BODY, (b"other",)),
            encoder.frame(1, Kind.BODY),
            encoder.frame(1, Kind.BODY, (body[1000:],), last=True),
            encoder.frame(3, Kind.CANCEL),
        )
    )
    memory, chosen = bytearray(len(body)), 0

    def place(call: int, size: int) -> memoryview | None:
        nonlocal chosen
        if call != 1:
            return None
        chosen += size
        return memoryview(memory)[chosen - size : chosen]

    decoder, found, position = FrameDecoder(place), list[Frame](), 0
    for size, is_direct in [*arrivals, (len(sent), False)]:
        position += receive(decoder, sent[position : position + size], found, is_direct=is_direct)
        assert decoder.is_inside or not decoder.rest
    assert list(decoder.feed(sent[position:])) == [] or position < len(sent)

    assert memory == body
    assert found == [
        Frame(1, Kind.BODY, False, b"", 1000),
        Frame(2, Kind.BODY, False, b"other"),
        Frame(1, Kind.BODY, False, b""),
        Frame(1, Kind.BODY, True, b"", len(body) - 1000),
        Frame(3, Kind.CANCEL, False, b""),
    ]


@given(st.lists(st.tuples(st.integers(1, 90_000), st.booleans()), max_size=8))
def test_n1_a_large_frame_has_memory_of_its_own_once_a_quarter_of_it_is_there(
    arrivals: list[tuple[int, bool]],
) -> None:
    """As above. What is received where it stays is not copied."""
    encoder, body = FrameEncoder(), bytes(range(256)) * 400
    sent = encoder.frame(1, Kind.BODY, (body,), last=True) + encoder.frame(2, Kind.CANCEL)
    size = len(body)

    decoder, found, position = FrameDecoder(), list[Frame](), 0
    for arrived, is_direct in [*arrivals, (len(sent), False)]:
        position += receive(decoder, sent[position : position + arrived], found, is_direct=is_direct)
        begun = position - FRAME_HEAD_BYTES
        assert bool(decoder.rest) is (size // 4 <= begun < size)
        assert decoder.held == (size if decoder.rest else position if begun < size // 4 else decoder.held)
    found += decoder.feed(sent[position:])

    assert found == [Frame(1, Kind.BODY, True, body), Frame(2, Kind.CANCEL, False, b"")]
    assert (decoder.held, decoder.is_inside) == (0, False)


@pytest.mark.parametrize("order", [[0, 0], [0, 2], [1, 0], [0, 1, 1], [1]], ids=str)
def test_n1_a_frame_that_is_lost_doubled_or_out_of_order_is_noticed(order: list[int]) -> None:
    encoder = FrameEncoder()
    made = [encoder.frame(1, Kind.BODY, (bytes([number]),)) for number in range(3)]

    with pytest.raises(InvalidArgument, match="lost or doubled"):
        decoded(b"".join(made[number] for number in order))


@pytest.mark.parametrize("kind, flags", [(0, 0), (8, 0), (255, 1), (3, 2), (3, 0x81)])
def test_n1_an_unknown_kind_or_flag_is_refused(kind: int, flags: int) -> None:
    with pytest.raises(InvalidArgument, match="no frame of kind"):
        decoded(struct.pack(">IIIBB", 0, 0, 1, kind, flags))


def test_n1_a_frame_that_is_too_long_is_refused_by_its_head() -> None:
    head = struct.pack(">IIIBB", PAYLOAD_BYTES_MAX + 1, 0, 1, Kind.BODY, LAST)

    with pytest.raises(TooLarge):
        decoded(head)


@given(st.binary(max_size=200))
def test_n1_any_bytes_give_frames_or_a_refusal(data: bytes) -> None:
    decoder = FrameDecoder()
    try:
        found = list(decoder.feed(data))
    except TierlogError as error:
        assert isinstance(error, (InvalidArgument, TooLarge))  # noqa: PT017 - what it raises is one outcome of two
        return

    assert len(found) <= len(data) // 14


@given(st.binary(max_size=80), st.sampled_from(["request", "answer", "end"]))
def test_n2_any_payload_is_read_or_refused(payload: bytes, kind: str) -> None:
    try:
        if kind == "request":
            decode_request(payload, HeadCache())
        elif kind == "answer":
            decode_answer(payload)
        else:
            decode_end(payload)
    except TierlogError as error:
        assert isinstance(error, InvalidArgument)  # noqa: PT017 - as above


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET",
        b"get\0/v1",
        b"GET\0v1",
        b"GET\0/a b",
        b"GET\0/a#b",
        b"GET\0/v1\0name",
        b"GET\0/v1\0Range\0bytes=0-",
        b"GET\0/v1\0range\0bytes=0-\r\nhost: other",
        b"GET\0/v1\0na me\0x",
        b"GET\0/v1\0host\0other",
        b"POST\0/v1\0content-length\x004",
        b"POST\0/v1\0transfer-encoding\0chunked",
        b"POST\0/v1\0connection\0close",
        b"POST\0/v1\0expect\x00100-continue",
        b"GET\0/v1\0upgrade\0tierlog-session",
    ],
)
def test_n2_a_head_that_is_no_request_or_concerns_a_connection_is_refused(head: bytes) -> None:
    with pytest.raises(InvalidArgument):
        decode_request(b"".join(request_parts(head, 0, 64 << 10, b"")), HeadCache())


def test_n2_blanks_around_a_value_are_no_part_of_it() -> None:
    head = joined_head(["GET", "/v1", "a", " \tb c\t ", "d", " "])

    assert HeadCache().decode(head).headers == ((b"a", b"b c"), (b"d", b""))


@pytest.mark.parametrize("window", [0, (64 << 10) - 1, (16 << 20) + 1])
def test_n3_a_window_has_bounds(window: int) -> None:
    with pytest.raises(InvalidArgument):
        decode_request(b"".join(request_parts(HEAD, 0, window, b"")), HeadCache())


def test_n2_a_head_has_a_bound() -> None:
    head = joined_head(["GET", "/" + "a" * HEAD_BYTES_MAX])

    with pytest.raises(InvalidArgument):
        decode_request(b"".join(request_parts(head, 0, 64 << 10, b"")), HeadCache())


def test_n2_a_call_has_at_most_as_many_headers_as_a_request() -> None:
    head = joined_head(["GET", "/v1", *["a", "b"] * 257])

    with pytest.raises(TooLarge, match="at most 256 headers"):
        decode_request(b"".join(request_parts(head, 0, 64 << 10, b"")), HeadCache())


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b"])
def test_n2_a_client_sends_no_header_with_control_characters(value: str) -> None:
    with pytest.raises(InvalidArgument):
        joined_head(["GET", "/", "name", value])


@pytest.mark.parametrize(("headers", "text"), [(250, 0), (12, 0), (2, 20), (1, 800), (0, 0)])
def test_n2_known_heads_have_a_bound(headers: int, text: int) -> None:
    """In memory: a name and a value are objects, however short they are."""
    names = [f"z{chr(97 + number % 26)}" for number in range(headers)]
    parts = [part for name in names for part in (name, "x" * text)]
    heads = HeadCache()
    for number in range(1000):
        heads.decode(joined_head(["GET", f"/v1/{number:04}", *parts]))

    assert memory_of(heads._known) < 48 << 10
    assert heads.decode(HEAD).target == b"/v1/batch"


def memory_of(value: object) -> int:
    """Bytes of it and of all that it consists of."""
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        parts = (*value.keys(), *value.values())
    elif isinstance(value, tuple):
        parts = value
    return sys.getsizeof(value) + sum(map(memory_of, parts))


def test_n2_the_heads_of_most_calls_are_decoded_once() -> None:
    heads = HeadCache()
    assert heads.decode(HEAD) is heads.decode(HEAD)
