"""The table of endpoints: every path that a server has, in the order in which they are tried.

Owns: the table. The routes and the OpenAPI document are both made from it, so that they cannot differ (rule
H16). Does not own: the handlers.
"""

from __future__ import annotations

from ....storage_backends.base.errors import (
    AttributeConflict,
    BadOffset,
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    OutOfOrder,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
    StorageFull,
    Throttled,
    TierlogError,
    TransactionEnded,
    TransactionNotFound,
    UnknownWriter,
)
from ...telemetry.metrics import CONTENT_TYPE as METRICS_TYPE
from ..wire import headers, paths
from ..wire.batch import BATCH_TYPE
from ..wire.documents import JSON_TYPE
from ..wire.errors import RangeNotSatisfiable, RequestTimeout, TooLarge, UnsupportedMediaType
from ..wire.paths import Verb
from . import admin_handlers as operating
from . import read_handlers as reading
from . import tails
from . import transaction_handlers as transactions
from . import write_handlers as changing
from .call import BYTES_TYPE
from .endpoint import Body, Endpoint, Handler, Parameter, Schema, Success
from .schemas import (
    EVENT_NUMBER,
    OFFSET,
    PREVIOUS,
    RANGE,
    RAW,
    TEXT,
    TRANSACTION_ID,
    WAIT,
    WRITER,
    WRITER_IN_QUERY,
    ref,
)

_ANY: tuple[type[TierlogError], ...] = (NotOwner, Throttled)
_ONE: tuple[type[TierlogError], ...] = (*_ANY, SegmentNotFound)
_BODY: tuple[type[TierlogError], ...] = (TooLarge, UnsupportedMediaType, RequestTimeout, OutcomeUnknown)
_TRANSACTION: tuple[type[TierlogError], ...] = (TransactionEnded, StorageFull)

_APPEND_HEADERS = (
    Parameter(
        headers.WRITER_ID, "header", WRITER, "Makes the append idempotent, together with its event number."
    ),
    Parameter(
        headers.EVENT_NUMBER,
        "header",
        EVENT_NUMBER,
        "The event's number; a repeat of an applied number changes nothing.",
    ),
    Parameter(
        headers.PREVIOUS_EVENT_NUMBER,
        "header",
        PREVIOUS,
        "The number of the writer's event before, where they are not contiguous.",
    ),
    Parameter(headers.EXPECTED_OFFSET, "header", OFFSET, "Append only if the segment is this long."),
)
_BYTES_HEADERS = {
    headers.OFFSET: "The offset of the first byte of the answer.",
    headers.LENGTH: "The segment's length.",
    headers.START_OFFSET: "The first offset that can be read.",
    headers.SEALED: "true if the length is final.",
}


def _post(
    verb: Verb,
    handler: Handler,
    help: str,
    answer: str,
    *errors: type[TierlogError],
    body: str = "Nothing",
    status: int = 200,
) -> Endpoint:
    return Endpoint(
        verb.value,
        "POST",
        f"{paths.SEGMENTS}/{{name:path}}/{verb.value}",
        handler,
        help,
        (Success(status, "Done, and durable.", JSON_TYPE, ref(answer)),),
        body=Body(JSON_TYPE, ref(body), required=body not in ("Nothing", "Create")),
        errors=(*_ONE, *_BODY, *errors),
    )


def _get(
    verb: Verb,
    handler: Handler,
    help: str,
    *successes: Success,
    parameters: tuple[Parameter, ...] = (),
    **more: object,
) -> Endpoint:
    path = f"{paths.SEGMENTS}/{{name:path}}/{verb.value}"
    return Endpoint(verb.value, "GET", path, handler, help, successes, parameters, **more)  # type: ignore[arg-type]


def _plain(operation: str, path: str, handler: Handler, help: str, *successes: Success) -> Endpoint:
    return Endpoint(operation, "GET", path, handler, help, successes)


def _json(schema: Schema, help: str = "The answer.") -> Success:
    return Success(200, help, JSON_TYPE, schema)


ENDPOINTS = (
    Endpoint(
        Verb.APPEND.value,
        "POST",
        f"{paths.SEGMENTS}/{{name:path}}/append",
        changing.append,
        "Append the body's bytes. Answers once they are durable.",
        (Success(200, "Durable, at this offset; null for an older duplicate.", JSON_TYPE, ref("Offset")),),
        _APPEND_HEADERS,
        Body(BYTES_TYPE, RAW, required=False),
        (
            *_ONE,
            *_BODY,
            SegmentSealed,
            BadOffset,
            OutOfOrder,
            UnknownWriter,
            StorageFull,
            TransactionEnded,
            TransactionNotFound,
        ),
    ),
    Endpoint(
        "batch",
        "POST",
        paths.BATCH,
        changing.batch,
        "Many appends to many segments, each with its own outcome; those to one segment in order.",
        (Success(200, "One result for each append, in order.", JSON_TYPE, ref("Results")),),
        body=Body(BATCH_TYPE, RAW),
        errors=(Throttled, *_BODY),
    ),
    _get(
        Verb.BYTES,
        reading.read_bytes,
        "Bytes of the segment, all or a range.",
        Success(200, "All bytes that can be read.", BYTES_TYPE, RAW, _BYTES_HEADERS),
        Success(
            206,
            "The range.",
            BYTES_TYPE,
            RAW,
            {**_BYTES_HEADERS, "Content-Range": "The range that was given, and the length."},
        ),
        parameters=(Parameter("Range", "header", RANGE, "bytes=a-b, bytes=a- or bytes=-n."),),
        errors=(*_ONE, SegmentTruncated, RangeNotSatisfiable, DataCorruption),
    ),
    _get(
        Verb.TAIL,
        tails.tail,
        "Bytes from an offset on, waiting for those that do not exist yet.",
        Success(
            200,
            "The next block, or all of them as they come.",
            BYTES_TYPE,
            RAW,
            {headers.OFFSET: "Of its first byte."},
        ),
        Success(
            204,
            "No bytes in time, or never again.",
            headers={headers.SEALED: "true if there will never be any."},
        ),
        parameters=(
            Parameter("offset", "query", OFFSET, "Where to begin."),
            Parameter("wait", "query", WAIT, "Seconds that a long poll waits."),
            Parameter("stream", "query", {"type": "boolean"}, "Send all blocks in one answer, as they come."),
        ),
        errors=(*_ONE, SegmentTruncated, DataCorruption),
        tail=True,
    ),
    _get(
        Verb.INFO,
        reading.info,
        "Length, start, seal, attributes and more, at one moment.",
        _json(ref("Info")),
        errors=_ONE,
    ),
    _get(
        Verb.LAST_EVENT_NUMBER,
        reading.last_event_number,
        "The number of a writer's latest event in the segment: where it goes on.",
        _json(ref("EventNumber")),
        parameters=(Parameter("writer_id", "query", WRITER_IN_QUERY, "The writer.", required=True),),
        errors=_ONE,
    ),
    _get(
        Verb.APPEND_STARTS,
        reading.append_starts,
        "Where appends begin, about one for each MiB, at most 4,096: where the segment can be divided among "
        "readers.",
        _json(ref("AppendStarts")),
        parameters=(
            Parameter("start", "query", OFFSET, "The first offset to look at; 0 if it is not given."),
            Parameter(
                "end", "query", OFFSET, "The offset to stop before; the segment's length if it is not given."
            ),
        ),
        errors=_ONE,
    ),
    _post(
        Verb.CREATE,
        changing.create,
        "Make an empty segment.",
        "Empty",
        SegmentExists,
        body="Create",
        status=201,
    ),
    _post(Verb.SEAL, changing.seal, "Refuse appends from now on.", "Length"),
    _post(
        Verb.TRUNCATE,
        changing.truncate,
        "Drop the bytes before an offset.",
        "Empty",
        BadOffset,
        body="Truncate",
    ),
    _post(Verb.DELETE, changing.delete, "Remove the segment.", "Empty"),
    _post(
        Verb.MERGE,
        changing.merge,
        "Move sealed segments to this one's tail, all or nothing.",
        "MergeOffset",
        SegmentSealed,
        SegmentNotSealed,
        AttributeConflict,
        body="Merge",
    ),
    _post(
        Verb.ATTRIBUTES,
        changing.attributes,
        "Change attributes, all or nothing.",
        "Values",
        AttributeConflict,
        body="Attributes",
    ),
    _post(
        Verb.EXPIRE_WRITERS,
        changing.expire_writers,
        "Forget writers' event numbers, on purpose.",
        "Known",
        body="ExpireWriters",
    ),
    _post(
        Verb.BEGIN_TRANSACTION,
        transactions.begin,
        "Begin a transaction, or find the one of this id; its state tells what is left to do.",
        "Transaction",
        *_TRANSACTION,
        body="Begin",
    ),
    _post(
        Verb.STAGE_SEGMENT,
        transactions.stage,
        "Make the staged segment of a part, or find it; it is appended to under the name that this answers "
        "with.",
        "Staged",
        *_TRANSACTION,
        TransactionNotFound,
        body="Stage",
    ),
    _post(
        Verb.COMMIT_TRANSACTION,
        transactions.commit,
        "Move staged segments to this one's tail and end the transaction, all or nothing.",
        "Committed",
        *_TRANSACTION,
        TransactionNotFound,
        SegmentSealed,
        BadOffset,
        body="Commit",
    ),
    _post(
        Verb.ABORT_TRANSACTION,
        transactions.abort,
        "Drop what is staged and end the transaction; one that is committed stays so.",
        "Transaction",
        *_TRANSACTION,
        body="Abort",
    ),
    _get(
        Verb.TRANSACTION_INFO,
        transactions.info,
        "What is known of a transaction.",
        _json(ref("Transaction")),
        parameters=(Parameter("transaction_id", "query", TRANSACTION_ID, "Which one.", required=True),),
        errors=(*_ONE, TransactionNotFound),
    ),
    Endpoint(
        "list-transactions",
        "GET",
        paths.TRANSACTIONS,
        transactions.list_transactions,
        "Transactions, open and ended ones, of the containers that this server has.",
        (_json(ref("Transactions")),),
        (Parameter("prefix", "query", TEXT, "What the names of their targets begin with."),),
        errors=_ANY,
    ),
    Endpoint(
        "list",
        "GET",
        paths.SEGMENTS,
        reading.list_segments,
        "Names of segments, sorted, of the containers that this server has.",
        (_json(ref("Names")),),
        (Parameter("prefix", "query", TEXT, "What the names begin with."),),
        errors=_ANY,
    ),
    Endpoint(
        "flush",
        "POST",
        paths.FLUSH,
        changing.flush,
        "Answers when all that was durable is in long-term storage too.",
        (_json(ref("Empty")),),
        body=Body(JSON_TYPE, ref("Nothing"), required=False),
        errors=(*_ANY, *_BODY),
    ),
    _plain(
        "containers",
        paths.CONTAINERS,
        operating.containers,
        "Which host serves which container.",
        _json(ref("Map")),
    ),
    _plain("health", paths.HEALTH, operating.health, "Whether the process is alive.", _json(ref("Health"))),
    _plain(
        "ready",
        paths.READY,
        operating.ready,
        "Whether all that is served here answers.",
        _json(ref("Status")),
        Success(503, "Not yet, or not any more.", JSON_TYPE, ref("Status")),
    ),
    _plain(
        "metrics",
        paths.METRICS,
        operating.metrics,
        "All numbers, for Prometheus.",
        Success(200, "One scrape.", METRICS_TYPE, TEXT),
    ),
    _plain(
        "page",
        "/",
        operating.page,
        "A page for people.",
        Success(200, "HTML.", "text/html; charset=utf-8", TEXT),
    ),
)
