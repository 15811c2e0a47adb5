"""Commands about transactions of a folder or of a service: list, show, abort.

Only a writer can begin and commit a transaction, because it knows the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .options import DEFAULT_DATA, Config, Data, Json, Service, TakeOver
from .running import execute, reading, writing

if TYPE_CHECKING:
    from ...storage_backends.base.transactions import TransactionInfo

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="The segment that a commit appends to.", show_default=False)
]
Id = Annotated[
    str, typer.Argument(metavar="ID", help="The transaction's id, as `txn ls` shows it.", show_default=False)
]


def ls(
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="PREFIX",
            help="Only transactions on targets that begin with PREFIX.",
            show_default=False,
        ),
    ] = "",
    json: Json = False,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """List transactions: the open ones, and ended ones that are still remembered.

    They are printed as they come. If that fails on the way, the exit code is 1, and a list in JSON has no
    end.
    """
    from ...storage_backends.base.list_pages import all_pages

    async def command(show: Callable[[list[TransactionInfo]], None]) -> None:
        async with (
            reading(data, url) as view,
            aclosing(all_pages(view.page_of_transactions, prefix)) as pages,
        ):
            async for page in pages:
                show(page.transactions)

    if json:
        with output.json_list() as add:
            execute(lambda: command(lambda found: add(map(_fields, found))))
    else:
        headers = ("bytes", "staged", "state", "target", "id")
        with output.table(headers, ("staged", "bytes")) as add:
            execute(lambda: command(lambda found: add(map(_listed, found))))


def _listed(info: TransactionInfo) -> tuple[Any, ...]:
    return info.length, len(info.staged), info.state.value, info.target, info.transaction_id


def show(
    target: Target, transaction_id: Id, json: Json = False, data: Data = DEFAULT_DATA, url: Service = None
) -> None:
    """Show a transaction: its state, token, lease, outcome and staged segments."""

    async def command() -> TransactionInfo:
        async with reading(data, url) as view:
            return await view.transaction_info(target, transaction_id)

    _print(execute(command), json)


def abort(
    target: Target,
    transaction_id: Id,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason in the error that its writers get.")
    ] = "aborted by hand",
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Abort a transaction: drop what it has staged and refuse its writers.

    A committed transaction stays committed, and is shown as such.
    """

    async def command() -> TransactionInfo:
        async with writing(data, config, take_over=take_over, url=url) as store:
            return await store.abort_transaction(target, transaction_id, reason=reason)

    _print(execute(command), json)


def _print(info: TransactionInfo, json: bool) -> None:
    fields = _fields(info)
    if json:
        output.print_json(fields)
        return

    staged, token = fields.pop("staged"), fields.pop("token")
    fields |= {"token": token and f"{token['writer']} at epoch {token['epoch']}"}
    # Fields without a value in its state are left out, such as the token of one that never had one.
    shown: dict[str, object] = {
        name: f"{value:.1f} s" if name in ("lease", "expires_in") else value
        for name, value in fields.items()
        if value not in (None, "")
    }
    output.print_fields(shown | {"staged": [f"{part['name']} {part['length']}" for part in staged]})


def _fields(info: TransactionInfo) -> dict[str, Any]:
    # Only an owner's clock measures leases; a read-only view has none.
    expires_in = info.expires_in if math.isfinite(info.expires_in) else None
    return {**output.as_json(info), "expires_in": expires_in}
