"""The verbs that change one segment, and the batch of appends to many.

Owns: how each request becomes one call of the store, and its answer. Does not own: what the verbs do (the
store), what the bodies look like (``wire/documents.py``, ``wire/batch.py``). An answer means that the change
is durable.

A batch is decoded while it comes in, and offered to the store once it is complete: one that is malformed or
cut off has no effect (rule H7).
"""

from __future__ import annotations

from ..wire import documents
from ..wire.batch import BATCH_TYPE, BatchDecoder, BatchItem, BatchLimits, encode_outcomes
from ..wire.documents import JSON_TYPE
from ..wire.headers import parse_append_headers
from .call import BYTES_TYPE, Answer, Call, document


async def append(call: Call) -> Answer:
    call.query()
    identity = parse_append_headers(call.scope["headers"])
    store = call.server.store
    data = await call.body(BYTES_TYPE, store.append_bytes_max)
    offset = await store.append(
        call.name,
        data,
        writer_id=identity.writer or None,
        event_number=identity.event_number,
        previous_event_number=identity.previous_event_number,
        expected_offset=identity.expected_offset,
    )
    return document({"offset": offset})


async def batch(call: Call) -> Answer:
    call.query()
    gateway = call.server
    decoder = BatchDecoder(BatchLimits(gateway.limits.batch_items, gateway.store.append_bytes_max))
    items: list[BatchItem] = []
    await call.each_piece(
        BATCH_TYPE, gateway.limits.batch_bytes, lambda piece: items.extend(decoder.feed(piece))
    )
    decoder.finish()
    outcomes = await gateway.store.append_each(items)
    told = [
        gateway.told(o, item.name) if isinstance(o, Exception) else o
        for o, item in zip(outcomes, items, strict=True)
    ]
    return Answer(200, encode_outcomes(told))


async def create(call: Call) -> Answer:
    size = documents.parse_create(await json_body(call))
    await call.server.store.create_segment(call.name, rolling_size=size)
    return document({}, 201)


async def seal(call: Call) -> Answer:
    documents.parse_nothing(await json_body(call))
    return document({"length": await call.server.store.seal_segment(call.name)})


async def truncate(call: Call) -> Answer:
    offset = documents.parse_truncate(await json_body(call))
    await call.server.store.truncate_segment(call.name, offset)
    return document({})


async def delete(call: Call) -> Answer:
    documents.parse_nothing(await json_body(call))
    await call.server.store.delete_segment(call.name)
    return document({})


async def merge(call: Call) -> Answer:
    sources, updates = documents.parse_merge(await json_body(call))
    offset = await call.server.store.merge_segments(call.name, sources, attribute_updates=updates)
    return document({"offset": offset})


async def attributes(call: Call) -> Answer:
    updates = documents.parse_attributes(await json_body(call))
    return document({"attributes": await call.server.store.update_attributes(call.name, updates)})


async def expire_writers(call: Call) -> Answer:
    writers = documents.parse_expire_writers(await json_body(call))
    return document({"known": await call.server.store.expire_writers(call.name, writers)})


async def flush(call: Call) -> Answer:
    documents.parse_nothing(await json_body(call))
    await call.server.store.flush()
    return document({})


async def json_body(call: Call) -> bytes:
    """The body of a verb that takes JSON and no query."""
    call.query()
    return await call.body(JSON_TYPE, call.server.limits.json_bytes)
