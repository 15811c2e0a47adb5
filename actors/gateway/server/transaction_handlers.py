"""The verbs of transactions (rule H17).

Owns: how each request becomes one call of the store, and its answer. Does not own: what the verbs do (the
store), nor the bodies' form (``wire/transactions.py``). An answer means that the change is durable; a repeat
of a request changes nothing more and is answered again.
"""

from __future__ import annotations

from ..wire import transactions
from ..wire.documents import JSON_TYPE
from ..wire.paths import query_text, query_transaction
from .call import Answer, Call, document
from .write_handlers import json_body


async def begin(call: Call) -> Answer:
    begin = transactions.parse_begin(await json_body(call))
    info = await call.server.store.begin_transaction(
        call.name, begin.transaction_id, token=begin.token, lease=begin.lease
    )
    return document(transactions.transaction_document(info))


async def stage(call: Call) -> Answer:
    transaction_id, part = transactions.parse_stage(await json_body(call))
    return document({"segment": await call.server.store.stage_segment(call.name, transaction_id, part)})


async def commit(call: Call) -> Answer:
    call.query()
    commit = transactions.parse_commit(await call.body(JSON_TYPE, call.server.limits.commit_bytes))
    result = await call.server.store.commit_transaction(
        call.name, commit.transaction_id, commit.parts, token=commit.token
    )
    return document(transactions.commit_result_document(result))


async def abort(call: Call) -> Answer:
    transaction_id, reason = transactions.parse_abort(await json_body(call))
    info = await call.server.store.abort_transaction(call.name, transaction_id, reason=reason)
    return document(transactions.transaction_document(info))


async def info(call: Call) -> Answer:
    transaction_id = query_transaction(call.query(transaction_id="which one"))
    return document(
        transactions.transaction_document(await call.server.store.transaction_info(call.name, transaction_id))
    )


async def list_transactions(call: Call) -> Answer:
    """Of the containers that are served here."""
    prefix = query_text(call.query(prefix="what the names of their targets begin with").get("prefix", ""))
    found = await call.server.store.list_transactions(prefix)
    return document({"transactions": [transactions.transaction_document(info) for info in found]})
