"""The parsers of HTTP: paths, queries, headers, ranges, JSON bodies, batches, and what a client reads out of
answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec

from fuzz.target import Target
from tierlog.actors.folder.process_lock import _pid
from tierlog.actors.gateway.client import requests as client_requests
from tierlog.actors.gateway.client.requests import Response
from tierlog.actors.gateway.server.guard import Guard
from tierlog.actors.gateway.wire import batch, bodies, errors, headers, paths, ranges, session
from tierlog.actors.settings.configuration import ServerConfig
from tierlog.actors.supervisor.service import check_advertised, listen_of
from tierlog.storage_backends.base.errors import BadOffset, InvalidArgument, TierlogError, TooLarge
from tierlog.storage_backends.base.segment_layout import ChunkExtent, SegmentLayout, StoragePlace
from tierlog.storage_backends.base.segments import AttributeUpdate, AttributeUpdateKind, SegmentInfo
from tierlog.storage_backends.base.transactions import (
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
)

_DEEP = [b'{"results": [' + b"[" * depth + b"]" * depth + b"]}" for depth in (900, 960, 980, 990, 5000)]
_HOSTILE_JSON = [
    *_DEEP,
    b"[" * 5000,
    b"9" * 5000,
    b'{"offset": ' + b"9" * 5000 + b"}",
    b'{"offset": 1e999}',
    b'{"offset": NaN}',
    b'{"offset": true}',
    b'{"offset": 1, "offset": 1}',
    b'{"writer_ids": ["\\ud800"]}',
    b'{"updates": [{"name": "\\ud800", "value": 1}]}',
    b'{"updates": [{"name": "a", "value": 1, "kind": []}]}',
    b'{"transaction_id": "t", "lease": 1e999}',
    b'{"transaction_id": "t", "token": {"writer": "\\ud800", "epoch": 1}}',
    b'{"transaction_id": "t", "parts": [{"name": "\\ud800", "length": 1}]}',
    b"null",
    b"\xff",
]
_UPDATES = [
    AttributeUpdate("txn", 5),
    AttributeUpdate("größe", -1, AttributeUpdateKind.REPLACE_IF_EQUALS, expected=0),
]


def _dump(document: object) -> bytes:
    return json.dumps(document).encode()


# --- bodies of requests -------------------------------------------------------------------------


def _request(*examples: bodies.RequestBody) -> Target:
    kind = type(examples[0])
    return Target(
        f"{kind.__name__.lower()} request",
        lambda data: bodies.decode_request(data, kind),
        [bodies.encode_json(example) for example in examples],
        errors=(InvalidArgument,),
        encode=bodies.encode_json,
        canonical=False,  # JSON has blanks
        hostile=_HOSTILE_JSON,
        bytes_per_byte=4096,
    )


_TOKEN = TransactionToken("größe", 5)
_PARTS = (StagedPart("a#txn.t-1.p0", 5), StagedPart("größe#txn.t-1.p1", 0))
_REQUESTS = [
    _request(bodies.Create(), bodies.Create(1 << 20)),
    _request(bodies.Truncate(5)),
    _request(bodies.Merge(["a#1", "a#2"], bodies.update_bodies(_UPDATES))),
    _request(bodies.Attributes(bodies.update_bodies(_UPDATES))),
    _request(bodies.ExpireWriters(["w", "%FF%20"])),
    _request(bodies.Nothing()),
    _request(bodies.Move("host-1")),
    _request(bodies.Begin("t-1", bodies.token_body(_TOKEN), 60.5), bodies.Begin("t", lease=5)),
    _request(bodies.Stage("t-1", "p0")),
    _request(
        bodies.Commit("t-1", bodies.part_bodies(_PARTS), bodies.token_body(_TOKEN)), bodies.Commit("t", [])
    ),
    _request(bodies.Abort("t", "größe")),
]

# --- headers, queries, ranges --------------------------------------------------------------------


def _append_headers(data: bytes) -> headers.AppendHeaders:
    """Lines of ``name: value``, as raw headers come."""
    pairs = [line.partition(b": ") for line in data.split(b"\n")]
    return headers.parse_append_headers([(name.lower(), value) for name, _, value in pairs])


def _written_headers(found: headers.AppendHeaders) -> bytes:
    return "\n".join(f"{name}: {value}" for name, value in headers.append_headers(found).items()).encode()


_QUERY = ["offset", "wait", "stream", "writer_id", "prefix", "transaction_id"]


def _query(data: bytes) -> tuple[object, ...]:
    values = paths.parse_query(data, _QUERY)
    seconds = paths.query_seconds(values, "wait", 1.0, 60.0)
    assert 0 <= seconds <= 60
    texts = paths.query_text(values.get("prefix", "")), paths.query_transaction(values)
    return (
        paths.query_number(values, "offset", 0),
        seconds,
        paths.query_flag(values, "stream"),
        paths.query_writer(values),
        texts,
    )


def _range(data: bytes) -> ranges.RangeRequest:
    wanted = ranges.parse_range(data.decode("latin-1"))
    try:
        extent = ranges.resolve_range(wanted, "a", 10, 100)
    except TierlogError:
        return wanted
    assert 10 <= extent.start <= extent.end <= 100
    return wanted


def _written_range(found: ranges.RangeRequest) -> bytes:
    first, last = ("" if end is None else end for end in (found.first, found.last))
    return f"bytes={first}-{last if found.suffix is None else found.suffix}".encode()


def _content_range(data: bytes) -> ranges.Extent | None:
    return ranges.parse_content_range(data.decode("latin-1"))


_HEADERS = [
    Target(
        "append headers",
        _append_headers,
        [
            _written_headers(headers.AppendHeaders(b"w 1", 5, -1, 1 << 40)),
            _written_headers(headers.AppendHeaders(expected_offset=0)),
        ],
        errors=(InvalidArgument,),
        encode=_written_headers,
        canonical=False,  # leading zeros, other headers
        hostile=[
            b"tierlog-expected-offset: " + b"9" * 5000,
            "tierlog-expected-offset: ²".encode(),
            b"tierlog-expected-offset: +1",
        ],
    ),
    Target(
        "query",
        _query,
        [b"offset=5&wait=0.5&stream=true&writer_id=app-7&prefix=a%2Fb&transaction_id=t:1"],
        errors=(InvalidArgument,),
        hostile=[
            b"wait=" + b"9" * 5000,
            b"wait=1e9",
            b"wait=nan",
            "wait=²".encode("latin-1"),
            b"prefix=%ff&writer_id=a",
        ],
    ),
    Target(
        "range",
        _range,
        [b"bytes=1-5", b"bytes=7-", b"bytes=-9"],
        (InvalidArgument,),
        _written_range,
        canonical=False,
    ),
    Target(
        "content range",
        _content_range,
        [b"bytes 1-5/100"],
        errors=(),
        encode=lambda extent: extent.content_range(100).encode(),
        canonical=False,
    ),
    Target(
        "request id",
        lambda data: headers.is_request_id(data.decode("latin-1")) or None,
        [b"a-1"],
        (),
        hostile=[b"a\n", b"a\r\nx: y"],
    ),
]

# --- batches -------------------------------------------------------------------------------------

_LIMITS = batch.BatchLimits(items=100, append_bytes=1000)
_ITEMS = [
    batch.BatchItem("a", b"plain"),
    batch.BatchItem("größe", b"twoevents", b"writer-1", 5, 2, 4, None),
    batch.BatchItem("a", b"", expected_offset=5),
    batch.BatchItem("a", b"!", b"writer-1", 7, 1, history=1 << 20),
]


def _encode_batch(items: list[batch.BatchItem]) -> bytes:
    return b"".join(batch.encode_batch(items))


def _decode_batch(data: bytes, *cuts: int) -> list[batch.BatchItem]:
    decoder = batch.BatchDecoder(_LIMITS)
    items: list[batch.BatchItem] = []
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        items += decoder.feed(data[start:end])
    decoder.finish()
    return items


def _batch(data: bytes) -> list[batch.BatchItem]:
    items = _decode_batch(data)
    assert _decode_batch(data, len(data) // 3, len(data) // 2) == items
    return items


_BATCHES = [
    Target(
        "batch",
        _batch,
        [_encode_batch(_ITEMS), _encode_batch([])],
        errors=(InvalidArgument, TooLarge),
        encode=_encode_batch,
        canonical=False,  # names that no item uses
    )
]

# --- answers -------------------------------------------------------------------------------------


def _layout(data: bytes) -> SegmentLayout:
    found = bodies.decode_answer(data, SegmentLayout)
    for extent in found.extents:
        assert len(extent.checksums()) == -(-(extent.end - extent.begin) // (1 << 20)) > 0
    return found


def _answer(kind: Any, *examples: object, decode: Callable[[bytes], Any] | None = None) -> Target:
    return Target(
        f"{kind.__name__} answer",
        decode or (lambda data: bodies.decode_answer(data, kind)),
        [bodies.encode_json(example) for example in examples],
        errors=(
            ValueError,
            json.JSONDecodeError,
            msgspec.DecodeError,
            msgspec.ValidationError,
            UnicodeDecodeError,
        ),
        hostile=_HOSTILE_JSON,
    )


def _problem(data: bytes) -> TierlogError:
    reported: Mapping[str, str] = {"content-type": errors.PROBLEM_TYPE, "retry-after": "1"}
    pause = errors.retry_after(reported, data)
    assert pause is not None
    assert 0 <= pause < 1e9
    error = errors.from_problem(500, reported, data, maybe_applied=True)
    again = errors.from_problem(500, reported, errors.to_problem(error).body(), maybe_applied=True)
    assert (type(again), str(again)) == (type(error), str(error))
    return error


_INFO = SegmentInfo("a", 1, 10, 0, True, {"txn": 5}, 10, 0)
_EXTENT = ChunkExtent(10, "containers/0000/0000000000000001/a", 3 << 20, 1, bytes(8))
_LAYOUT = SegmentLayout(
    1, 5, 0, 1 << 40, (_EXTENT,), None, 60.0, StoragePlace("ab", "s3://bucket/a", "http://b")
)
_PROBLEM = errors.problem_document(BadOffset("not there", segment="a", expected=5, given=6))
_MAP = bodies.ContainerMap(
    3, (bodies.ContainerAssignment(0, "http://127.0.0.1:1", 5), bodies.ContainerAssignment(1, None, None))
)
_OPEN = TransactionInfo("t-1", "a", TransactionState.OPEN, _TOKEN, 60.0, 12.5, "", None, 5, _PARTS)
_ANSWERS = [
    _answer(SegmentInfo, _INFO),
    _answer(bodies.ContainerMap, _MAP, decode=bodies.decode_map),
    _answer(bodies.HostStatus, bodies.HostStatus(True, False, (bodies.ContainerStatus(0, "active"),))),
    _answer(bodies.Unconfirmed, bodies.Unconfirmed(0, "the folder was adopted", 5, 1 << 40)),
    _answer(bodies.Appended, bodies.Appended(5), bodies.Appended(None)),
    _answer(bodies.EventNumber, bodies.EventNumber(5)),
    _answer(bodies.Length, bodies.Length(5)),
    _answer(bodies.Merged, bodies.Merged(5)),
    _answer(bodies.KnownWriters, bodies.KnownWriters(5)),
    _answer(bodies.AppendStarts, bodies.AppendStarts([0, 5])),
    _answer(SegmentLayout, _LAYOUT, decode=_layout),
    _answer(bodies.AttributeValues, bodies.AttributeValues({"txn": 5})),
    _answer(bodies.SegmentNames, bodies.SegmentNames(["a", "b"])),
    _answer(TransactionInfo, _OPEN, attrs.evolve(_OPEN, token=None, offset=5)),
    _answer(bodies.Transactions, bodies.Transactions([_OPEN])),
    _answer(bodies.Staged, bodies.Staged("a#txn.t-1.p0")),
    _answer(CommitResult, CommitResult(True, 5, 7)),
    _answer(
        batch.Results, {"results": [5, None, _PROBLEM]}, decode=lambda data: batch.decode_outcomes(data, 3)
    ),
    Target(
        "problem",
        _problem,
        [_dump(_PROBLEM), b"<html>"],
        errors=(),
        hostile=[*_HOSTILE_JSON, b'{"retry_after": ' + b"9" * 400 + b"}"],
    ),
]

# --- what a client makes of bytes, and what a service is started with ----------------------------


def _block(data: bytes) -> bytes:
    """The body of a range read and of a long poll; the first byte says how the headers look."""
    extent = ("bytes 5-14/20", "bytes 0-1/2", "bytes */20", "nonsense", "")[data[0] % 5 if data else 4]
    found = client_requests.poll("a", 5, 0.0).parse(Response(200 if data else 204, {}, data)).block
    try:
        return (
            client_requests.read("a", 5, 10).parse(Response(206, {"content-range": extent}, data[1:])) + found
        )
    except ValueError:
        return found


def _listening(data: bytes) -> tuple[str, int]:
    address, port = listen_of(data.decode("latin-1"), ServerConfig())
    check_advertised(address, address)
    return address, port


def _refusal(data: bytes) -> str:
    """Why a request with the lines ``name: value`` as its head is refused."""
    pairs = [line.partition(b": ") for line in data.split(b"\n")]
    scope = {
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "server": ("127.0.0.1", 8470),
        "headers": [(name.lower(), value) for name, _, value in pairs],
    }
    return repr(Guard(["store.example"]).refusal(scope))


_SERVICE = [
    Target("block", _block, [b"\x000123456789", b""], errors=()),
    Target(
        "listen",
        _listening,
        [b"127.0.0.1:8470", b"[::1]:1", b":0", b"localhost"],
        errors=(InvalidArgument,),
        hostile=[b":" + b"9" * 5000],
    ),
    Target(
        "guard",
        _refusal,
        [
            b"Host: 127.0.0.1:8470",
            b"Host: [::1]:1\nOrigin: http://[::1]:1",
            b"Host: Store.Example.\nSec-Fetch-Site: cross-site",
        ],
        errors=(),
    ),
    Target(
        "holder of the term",
        _pid,
        [b'{"pid": 5}'],
        errors=(),
        hostile=[*_HOSTILE_JSON, b'{"pid": Infinity}', b"[" * 100_000],
    ),
]


def _frames(data: bytes) -> list[session.Frame]:
    whole, halves = session.FrameDecoder(), session.FrameDecoder()
    found = list(whole.feed(data))
    middle = len(data) // 2
    assert [*halves.feed(data[:middle]), *halves.feed(data[middle:])] == found
    return found


def _encode_frames(frames: list[session.Frame]) -> bytes:
    encoder = session.FrameEncoder()
    return b"".join(
        encoder.frame(frame.call, session.Kind(frame.kind), (frame.payload,), last=frame.is_last)
        for frame in frames
    )


_HEAD = session.joined_head(["POST", "/v1/batch", "content-type", "a/b"])
_REQUEST_FRAME = b"".join(session.request_parts(_HEAD, 5, 64 << 10, b"hi"))
_ANSWER_FRAME = b"".join(session.answer_parts(200, [(b"a", b"b")], b"{}"))
_SESSIONS = [
    Target(
        "frames",
        _frames,
        [
            _encode_frames(
                [
                    session.Frame(1, session.Kind.REQUEST, False, _REQUEST_FRAME),
                    session.Frame(1, session.Kind.BODY, True, b"!?!"),
                    session.Frame(0, session.Kind.END, False, b"\0\0\0\1"),
                ]
            ),
            b"",
        ],
        errors=(InvalidArgument, TooLarge),
        encode=_encode_frames,
        canonical=False,  # what follows the last whole frame is its reader's
    ),
    Target(
        "request frame",
        lambda data: session.decode_request(data, session.HeadCache()),
        [_REQUEST_FRAME],
        errors=(InvalidArgument,),
    ),
    Target("answer frame", session.decode_answer, [_ANSWER_FRAME], errors=(InvalidArgument,)),
    Target("end frame", session.decode_end, [b"\0\0\0\1bye"], errors=(InvalidArgument,)),
]

GATEWAY_TARGETS = [*_SERVICE, *_SESSIONS, *_REQUESTS, *_HEADERS, *_BATCHES, *_ANSWERS]
