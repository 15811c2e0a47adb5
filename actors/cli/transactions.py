"""Commands about transactions, of a folder or of a service: see what writers have begun, and end what they
left behind.

Does not own: beginning and committing one, which only a writer can do, who knows its parts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .options import DEFAULT_DATA, Config, Data, Json, Service, TakeOver
from .running import execute, reading, writing

if TYPE_CHECKING:
    from ...storage_backends.base.transactions import TransactionInfo

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="The segment that gets the bytes at the commit.", show_default=False
    ),
]
Id = Annotated[
    str, typer.Argument(metavar="ID", help="The transaction's id, as `txn ls` shows it.", show_default=False)
]


def ls(
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="[PREFIX]", help="Only those whose target's name begins with it.", show_default=False
        ),
    ] = "",
    json: Json = False,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """List the transactions: the open ones, and those that ended and are still remembered."""

    async def command() -> list[TransactionInfo]:
        async with reading(data, url) as view:
            return await view.list_transactions(prefix)

    found = execute(command)
    if json:
        output.print_json([_fields(info) for info in found])
    else:
        rows = [(i.length, len(i.staged), i.state.value, i.target, i.transaction_id) for i in found]
        output.print_table(("bytes", "staged", "state", "target", "id"), rows)


def show(
    target: Target, transaction_id: Id, json: Json = False, data: Data = DEFAULT_DATA, url: Service = None
) -> None:
    """Show a transaction: its state, its token, its lease, how it ended, and what it has staged."""

    async def command() -> TransactionInfo:
        async with reading(data, url) as view:
            return await view.transaction_info(target, transaction_id)

    _print(execute(command), json)


def abort(
    target: Target,
    transaction_id: Id,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why: its writers are told.")
    ] = "aborted by hand",
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Drop what a transaction has staged, and refuse its writers from now on.

    One that is committed stays committed; the state that is shown says so.
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
    told = {name: value for name, value in fields.items() if value not in (None, "")}
    width = max(map(len, told))
    output.print_lines(
        [f"{name.replace('_', ' '):<{width}}  {_shown(name, value)}" for name, value in told.items()]
    )
    output.print_lines([f"{'staged':<{width}}  {part['name']} {part['length']}" for part in staged])


def _fields(info: TransactionInfo) -> dict[str, Any]:
    import attrs

    # In a folder without its owner no clock runs.
    expires_in = info.expires_in if math.isfinite(info.expires_in) else None
    return {**attrs.asdict(info), "state": info.state.value, "expires_in": expires_in}


def _shown(name: str, value: object) -> str:
    return f"{value:.1f} s" if name in ("lease", "expires_in") else str(value)
