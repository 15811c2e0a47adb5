"""The parsers of HTTP: paths, queries, headers, ranges, JSON bodies, batches, and what a client reads out of
answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fuzz.target import Target
from tierlog.actors.gateway.client import requests as client_requests
from tierlog.actors.gateway.client.requests import Response
from tierlog.actors.gateway.wire import batch, documents, errors, headers, paths, ranges, transactions
from tierlog.actors.settings.configuration import ServerConfig
from tierlog.actors.supervisor.service import listen_of
from tierlog.actors.supervisor.term import _pid
from tierlog.storage_backends.base.errors import BadOffset, InvalidArgument, TierlogError
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


def _request(
    name: str, parse: Callable[[bytes], Any], write: Callable[[Any], bytes], *examples: bytes
) -> Target:
    return Target(
        f"{name} request",
        parse,
        examples,
        errors=(InvalidArgument,),
        encode=write,
        canonical=False,  # JSON has blanks
        hostile=_HOSTILE_JSON,
        bytes_per_byte=4096,
    )


def _nothing(data: bytes) -> bool:
    documents.parse_nothing(data)
    return True


_MERGE = documents.merge_document(["a#1", "a#2"], _UPDATES)
_REQUESTS = [
    _request(
        "create",
        lambda data: (documents.parse_create(data),),
        lambda size: documents.create_document(*size),
        b"",
        b'{"rolling_size": 5}',
    ),
    _request(
        "truncate", documents.parse_truncate, documents.truncate_document, documents.truncate_document(5)
    ),
    _request("merge", documents.parse_merge, lambda found: documents.merge_document(*found), _MERGE),
    _request(
        "attributes",
        documents.parse_attributes,
        documents.attributes_document,
        documents.attributes_document(_UPDATES),
    ),
    _request(
        "expire writers",
        documents.parse_expire_writers,
        documents.expire_writers_document,
        documents.expire_writers_document([b"w", b"\xff "]),
    ),
    _request("empty", _nothing, lambda found: b"{}", b"", b"{}"),
]

_TOKEN = TransactionToken("größe", 5)
_PARTS = (StagedPart("a#txn.t-1.p0", 5), StagedPart("größe#txn.t-1.p1", 0))
_TRANSACTION_REQUESTS = [
    _request(
        "begin",
        transactions.parse_begin,
        transactions.begin_document,
        transactions.begin_document(transactions.Begin("t-1", _TOKEN, 60.5)),
        b'{"transaction_id": "t", "lease": 5}',
    ),
    _request(
        "stage",
        transactions.parse_stage,
        lambda f: transactions.stage_document(*f),
        transactions.stage_document("t-1", "p0"),
    ),
    _request(
        "commit",
        transactions.parse_commit,
        transactions.commit_document,
        transactions.commit_document(transactions.Commit("t-1", _PARTS, _TOKEN)),
        transactions.commit_document(transactions.Commit("t", ())),
    ),
    _request(
        "abort",
        transactions.parse_abort,
        lambda f: transactions.abort_document(*f),
        transactions.abort_document("t", "größe"),
    ),
]

# --- headers, queries, ranges --------------------------------------------------------------------


def _append_headers(data: bytes) -> headers.AppendHeaders:
    """Lines of ``name: value``, as raw headers come."""
    pairs = [line.partition(b": ") for line in data.split(b"\n")]
    return headers.parse_append_headers([(name.lower(), value) for name, _, value in pairs])


def _written_headers(found: headers.AppendHeaders) -> bytes:
    return "\n".join(f"{name}: {value}" for name, value in headers.append_headers(found).items()).encode()


_QUERY = {"offset": "", "wait": "", "stream": "", "writer_id": "", "prefix": "", "transaction_id": ""}


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
        "flag header",
        lambda data: headers.parse_flag(data.decode("latin-1")),
        [b"true", b"false"],
        (),
        lambda f: str(f).lower().encode(),
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
        errors=(InvalidArgument, errors.TooLarge),
        encode=_encode_batch,
        canonical=False,  # names that no item uses
    )
]

# --- answers -------------------------------------------------------------------------------------


def _answer(name: str, parse: Callable[[bytes], Any], *documents_: object) -> Target:
    examples = [_dump(document) for document in documents_]
    return Target(
        f"{name} answer",
        parse,
        examples,
        errors=(ValueError, json.JSONDecodeError, UnicodeDecodeError),
        hostile=_HOSTILE_JSON,
    )


def _problem(data: bytes) -> TierlogError:
    told: Mapping[str, str] = {"content-type": errors.PROBLEM_TYPE, "retry-after": "1"}
    pause = errors.retry_after(told, data)
    assert pause is not None
    assert 0 <= pause < 1e9
    error = errors.from_problem(500, told, data, maybe_applied=True)
    again = errors.from_problem(500, told, errors.to_problem(error).body(), maybe_applied=True)
    assert (type(again), str(again)) == (type(error), str(error))
    return error


_INFO = SegmentInfo("a", 1, 10, 0, True, {"txn": 5}, 10, 0)
_PROBLEM = errors.problem_document(BadOffset("not there", segment="a", expected=5, given=6))
_STATUS = documents.HostStatus(True, False, (documents.ContainerStatus(0, "active"),))
_MAP = documents.ContainerMap(
    3,
    (documents.ContainerAssignment(0, "http://127.0.0.1:1", 5), documents.ContainerAssignment(1, None, None)),
)
_TRANSACTION = transactions.transaction_document(
    TransactionInfo("t-1", "a", TransactionState.OPEN, _TOKEN, 60.0, 12.5, "", None, 5, _PARTS)
)
_ANSWERS = [
    _answer("info", documents.parse_info, documents.info_document(_INFO)),
    _answer("map", documents.parse_map, documents.map_document(_MAP)),
    _answer("status", documents.parse_status, documents.status_document(_STATUS)),
    _answer("offset", lambda data: (documents.parse_offset(data),), {"offset": 5}, {"offset": None}),
    _answer("event number", lambda data: (documents.parse_event_number(data),), {"event_number": 5}),
    _answer("length", documents.parse_length, {"length": 5}),
    _answer("merged", documents.parse_merged, {"offset": 5}),
    _answer("known", documents.parse_known, {"known": 5}),
    _answer("append starts", documents.parse_append_starts, {"append_starts": [0, 5]}),
    _answer("values", documents.parse_values, {"attributes": {"txn": 5}}),
    _answer("names", documents.parse_names, {"segments": ["a", "b"]}),
    _answer(
        "transaction",
        transactions.parse_transaction,
        _TRANSACTION,
        {**_TRANSACTION, "token": None, "offset": 5},
    ),
    _answer("transactions", transactions.parse_transactions, {"transactions": [_TRANSACTION]}),
    _answer("staged", transactions.parse_staged, {"segment": "a#txn.t-1.p0"}),
    _answer(
        "commit",
        transactions.parse_commit_result,
        transactions.commit_result_document(CommitResult(True, 5, 7)),
    ),
    _answer("batch", lambda data: batch.decode_outcomes(data, 3), {"results": [5, None, _PROBLEM]}),
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
    return listen_of(data.decode("latin-1"), ServerConfig())


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
        "holder of the term",
        _pid,
        [b'{"pid": 5}'],
        errors=(),
        hostile=[*_HOSTILE_JSON, b'{"pid": Infinity}', b"[" * 100_000],
    ),
]

GATEWAY_TARGETS = [*_SERVICE, *_REQUESTS, *_TRANSACTION_REQUESTS, *_HEADERS, *_BATCHES, *_ANSWERS]
