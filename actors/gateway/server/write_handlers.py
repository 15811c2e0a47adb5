"""The verbs that change one segment, and the batch of appends to many. An answer means that the change is
durable.

A batch is decoded while it is received, and given to the store once it is complete: one that is malformed or
cut off has no effect (rule H7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import (
    AttributeConflict,
    BadOffset,
    HistoryLost,
    NotOwner,
    OutOfOrder,
    SegmentExists,
    SegmentNotSealed,
    SegmentSealed,
    StorageFull,
    Throttled,
    TransactionEnded,
    TransactionNotFound,
    UnknownWriter,
)
from ..wire import headers, paths
from ..wire.batch import (
    BATCH_TYPE,
    ITEM_MEMORY,
    BatchDecoder,
    BatchItem,
    BatchLimits,
    Outcome,
    Results,
    encode_outcomes,
)
from ..wire.bodies import (
    JSON_TYPE,
    Appended,
    Attributes,
    AttributeValues,
    Create,
    Empty,
    ExpireWriters,
    KnownWriters,
    Length,
    Merge,
    Merged,
    Nothing,
    Number,
    Offset,
    PreviousNumber,
    Truncate,
    WriterId,
    update_values,
)
from ..wire.paths import Verb
from .call import BYTES_TYPE, RAW, Answer, Call, HttpCall, json_answer
from .endpoint import BODY_ERRORS, Body, Parameter, Success, endpoint, verb

_batch_limits = lru_cache(BatchLimits)


@verb(
    Verb.APPEND,
    SegmentSealed,
    BadOffset,
    OutOfOrder,
    UnknownWriter,
    HistoryLost,
    StorageFull,
    TransactionEnded,
    TransactionNotFound,
    body=Body(BYTES_TYPE, RAW, required=False),
    successes=(
        Success(200, "Durable at this offset; null for a repeat of an earlier append.", JSON_TYPE, Appended),
    ),
    parameters=(
        Parameter(
            headers.WRITER_ID, WriterId, "Makes the append idempotent, with its event number.", "header"
        ),
        Parameter(
            headers.EVENT_NUMBER,
            Number,
            "The event's number; a repeat of an applied number changes nothing.",
            "header",
        ),
        Parameter(
            headers.PREVIOUS_EVENT_NUMBER,
            PreviousNumber,
            "The number of the writer's previous event, if numbers are not contiguous.",
            "header",
        ),
        Parameter(headers.EXPECTED_OFFSET, Offset, "Append only if the segment is this long.", "header"),
        Parameter(headers.HISTORY, Offset, "The history that number and offset are of.", "header"),
    ),
)
async def append(call: Call) -> Answer:
    """Append the body's bytes. Answers once they are durable."""
    # Before the body: a bad header is refused without receiving megabytes.
    identity = headers.parse_append_headers(call.scope["headers"])
    store = call.server.store
    data = await call.body(BYTES_TYPE, store.append_bytes_max)
    offset = await store.append(
        call.name,
        data,
        writer_id=identity.writer or None,
        event_number=identity.event_number,
        previous_event_number=identity.previous_event_number,
        expected_offset=identity.expected_offset,
        history=identity.history,
    )
    return json_answer(Appended(offset))


@endpoint(
    "POST",
    paths.BATCH,
    "batch",
    Throttled,
    *BODY_ERRORS,
    body=Body(BATCH_TYPE, RAW),
    successes=(Success(200, "One result for each append, in order.", JSON_TYPE, Results),),
)
async def batch(call: Call) -> None:
    """Append to many segments, each append with its own outcome; those to one segment in order."""
    items = await receive_batch(call, call.server.store.append_bytes_max)
    await answer_batch(call, items, await call.server.append_each(call, items))


async def receive_batch(call: HttpCall[Any], append_bytes_max: int) -> list[BatchItem]:
    """The items of the body."""
    limits = call.server.limits
    decoder = BatchDecoder(_batch_limits(limits.batch_items, append_bytes_max))
    items: list[BatchItem] = []

    def decode(piece: Buffer) -> Iterator[int]:
        for decoded in decoder.steps(piece):
            items.extend(decoded)
            yield ITEM_MEMORY * len(decoded)

    await call.in_steps(BATCH_TYPE, limits.batch_bytes, decode)
    # H7: nothing reaches the store before the last byte was decoded.
    decoder.finish()
    return items


async def answer_batch(call: HttpCall[Any], items: Sequence[BatchItem], outcomes: Sequence[Outcome]) -> None:
    await call.pieces(
        JSON_TYPE,
        encode_outcomes(
            # H13: the containers of one batch may have moved to several hosts.
            call.server.located(outcome, item.name) if isinstance(outcome, Exception) else outcome
            for outcome, item in zip(outcomes, items, strict=True)
        ),
    )


@verb(Verb.CREATE, SegmentExists, StorageFull, status=201)
async def create(call: Call, body: Create) -> Empty:
    """Create an empty segment. With `exist_ok` an existing one is left as it is."""
    await call.server.store.create_segment(call.name, rolling_size=body.rolling_size, exist_ok=body.exist_ok)
    return Empty()


@verb(Verb.SEAL)
async def seal(call: Call, body: Nothing) -> Length:
    """Refuse appends from now on."""
    return Length(await call.server.store.seal_segment(call.name))


@verb(Verb.TRUNCATE, BadOffset, HistoryLost)
async def truncate(call: Call, body: Truncate) -> Empty:
    """Drop the bytes before an offset."""
    await call.server.store.truncate_segment(call.name, body.offset, history=body.history)
    return Empty()


@verb(Verb.DELETE)
async def delete(call: Call, body: Nothing) -> Empty:
    """Delete the segment."""
    await call.server.store.delete_segment(call.name)
    return Empty()


@verb(Verb.MERGE, SegmentSealed, SegmentNotSealed, AttributeConflict)
async def merge(call: Call, body: Merge) -> Merged:
    """Move sealed segments to this one's tail, all or none."""
    updates = update_values(body.attribute_updates)
    return Merged(await call.server.store.merge_segments(call.name, body.sources, attribute_updates=updates))


@verb(Verb.ATTRIBUTES, AttributeConflict, StorageFull)
async def attributes(call: Call, body: Attributes) -> AttributeValues:
    """Change attributes, all or none."""
    values = await call.server.store.update_attributes(call.name, update_values(body.updates))
    return AttributeValues.of(values)


@verb(Verb.EXPIRE_WRITERS, StorageFull)
async def expire_writers(call: Call, body: ExpireWriters) -> KnownWriters:
    """Forget the event numbers of writers."""
    writers = [headers.parse_writer("a writer id", text) for text in body.writer_ids]
    return KnownWriters(await call.server.store.expire_writers(call.name, writers))


@endpoint("POST", paths.FLUSH, "flush", NotOwner, Throttled, *BODY_ERRORS)
async def flush(call: Call, body: Nothing) -> Empty:
    """Flush all containers: answers once everything that was durable is in long-term storage too."""
    await call.server.store.flush()
    return Empty()
