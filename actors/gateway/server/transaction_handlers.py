"""The verbs of transactions (rule H17). An answer means that the change is durable; a repeat of a request
changes nothing more and gets the same answer."""

from __future__ import annotations

from ....storage_backends.base.errors import (
    BadOffset,
    HistoryLost,
    NotOwner,
    SegmentSealed,
    StorageFull,
    Throttled,
    TransactionEnded,
    TransactionNotFound,
)
from ....storage_backends.base.list_pages import TRANSACTIONS
from ....storage_backends.base.transactions import (
    TRANSACTIONS_PAGE_MAX,
    CommitResult,
    StagedPart,
    TransactionInfo,
)
from ..wire import paths
from ..wire.bodies import Abort, Begin, Commit, Stage, Staged, TransactionId, Transactions, token_value
from ..wire.paths import Verb, query_page, query_transaction
from .call import Call
from .endpoint import Parameter, endpoint, page_parameters, verb

TRANSACTIONS_PARAMETERS = page_parameters(
    "A prefix of the names of their targets.", "transactions", TRANSACTIONS_PAGE_MAX
)


@verb(Verb.BEGIN_TRANSACTION, TransactionEnded, StorageFull)
async def begin(call: Call, body: Begin) -> TransactionInfo:
    """Begin a transaction, or find the one with this id; its state shows what is left to do."""
    return await call.server.store.begin_transaction(
        call.name, body.transaction_id, token=token_value(body.token), lease=body.lease
    )


@verb(Verb.STAGE_SEGMENT, TransactionEnded, StorageFull, TransactionNotFound)
async def stage(call: Call, body: Stage) -> Staged:
    """Create the staged segment of a part, or find it. Append to it under the name in the answer."""
    return Staged(await call.server.store.stage_segment(call.name, body.transaction_id, body.part))


@verb(
    Verb.COMMIT_TRANSACTION,
    TransactionEnded,
    StorageFull,
    TransactionNotFound,
    SegmentSealed,
    BadOffset,
    HistoryLost,
    body_limit="commit_bytes",
)
async def commit(call: Call, body: Commit) -> CommitResult:
    """Move staged segments to this one's tail and end the transaction, all or nothing."""
    parts = [StagedPart(part.name, part.length) for part in body.parts]
    return await call.server.store.commit_transaction(
        call.name, body.transaction_id, parts, token=token_value(body.token)
    )


@verb(Verb.ABORT_TRANSACTION, TransactionEnded, StorageFull)
async def abort(call: Call, body: Abort) -> TransactionInfo:
    """Drop what is staged and end the transaction; a committed one stays committed."""
    return await call.server.store.abort_transaction(call.name, body.transaction_id, reason=body.reason)


@verb(
    Verb.TRANSACTION_INFO,
    TransactionNotFound,
    parameters=(Parameter("transaction_id", TransactionId, "The transaction's id.", required=True),),
)
async def info(call: Call) -> TransactionInfo:
    """The state of a transaction."""
    return await call.server.store.transaction_info(call.name, query_transaction(call.query()))


@endpoint(
    "GET",
    paths.TRANSACTIONS,
    "list-transactions",
    NotOwner,
    Throttled,
    help="The answer.",
    parameters=TRANSACTIONS_PARAMETERS,
)
async def page_of_transactions(call: Call) -> Transactions:
    """A page of the open and ended transactions, sorted by target and id, of the containers that this server
    has. With the `token` of a page the next one."""
    asked = query_page(TRANSACTIONS, call.query())
    page = await call.server.store.page_of_transactions(asked.prefix, token=asked.token, limit=asked.limit)
    return Transactions(page.transactions, page.token)
