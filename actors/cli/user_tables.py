"""Commands about users' tables and their rows, of a folder or of a service. Keys and values are any bytes:
JSON has them in base64, as the service's answers do."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ...storage_backends.base.errors import (
    ChangesIncomplete,
    SegmentNotFound,
    SegmentSealed,
    TierlogError,
    WrongSegmentKind,
)
from . import output
from .options import DEFAULT_DATA, Chunks, Config, Data, Json, Service, TakeOver, file_path, number_option
from .running import execute, fail, reading, writing
from .segment_write import check_chunks, print_result, run_verb

if TYPE_CHECKING:
    from ...storage_backends.base.tables import ChangesPage, TableChange, TablePage, TableRow

    P = TypeVar("P", TablePage, ChangesPage)

_HINTS: dict[type[TierlogError], str] = {
    SegmentNotFound: "`tierlog segment ls` shows the names, `tierlog table create` makes a table",
    WrongSegmentKind: "`tierlog segment` has the commands of segments",
    ChangesIncomplete: "leave out --since",
    SegmentSealed: "",  # The message has what a table can still do.
}
_SHOWN = 60
"""Characters of a value in a list."""
_PAGE = 1_000

Table = Annotated[
    str, typer.Argument(metavar="NAME", help="The table's name, such as app/users.", show_default=False)
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="A key, as text in UTF-8.", show_default=False)]
InHex = Annotated[
    bool, typer.Option("--hex", help="KEY is given in hex; keys and values are printed in hex.")
]
Expected = Annotated[
    int | None,
    number_option("--expected-version", "Only if the key has this version now; 0: only if it has no row."),
]
Writer = Annotated[
    str | None, typer.Option("--writer", metavar="ID", help="The writer's id, for idempotent updates.")
]
EventNumber = Annotated[int | None, number_option("--event-number", "The writer's number of the update.")]
Limit = Annotated[
    int | None, number_option("--limit", "The most rows to list; default: all of them.", least=1)
]
Token = Annotated[
    str | None, typer.Option("--token", metavar="TOKEN", help="Continue where a list with --limit ended.")
]


def create(
    context: typer.Context,
    name: Table,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if the table exists; it stays as it is.")
    ] = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    chunks: Chunks = None,
    take_over: TakeOver = False,
    url: Service = None,
    json: Json = False,
) -> None:
    """Create an empty table, and the data folder if there is none.

    A table is a segment with rows: `tierlog segment` lists, describes, seals and deletes it.
    """
    check_chunks(context, url)
    store = writing(data, config, take_over=take_over, creates=name, url=url, chunks=chunks)
    run_verb(store, lambda store: store.create_table(name, exist_ok=exist_ok), json)


def put(
    name: Table,
    key: Key,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", parser=file_path, metavar="FILE", help="The value is in this file; default: stdin."
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option("--data-text", metavar="TEXT", help="The value is this text, as UTF-8.")
    ] = None,
    expected_version: Expected = None,
    writer: Writer = None,
    event_number: EventNumber = None,
    in_hex: InHex = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
    json: Json = False,
) -> None:
    """Set the value of a key and print its version, once it is durable.

    An update that is repeated with the same --writer and --event-number is applied once.
    """
    if file is not None and text is not None:
        raise typer.BadParameter("give either --file or --data-text, not both")

    from .stdin_append import open_input, read_value

    chosen = _bytes(key, in_hex)
    event = _event(writer, event_number)

    async def command() -> int | None:
        # Before the store: a file that cannot be read must not fence an owner with --take-over.
        with open_input(file, text) as source:
            value = await read_value(source)
        async with writing(data, config, take_over=take_over, url=url) as store:
            return await store.table(name).put(chosen, value, expected_version=expected_version, **event)

    print_result(execute(command, hints=_HINTS), json, "version", "the value was set")


def remove(
    name: Table,
    key: Key,
    expected_version: Expected = None,
    writer: Writer = None,
    event_number: EventNumber = None,
    in_hex: InHex = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
    json: Json = False,
) -> None:
    """Remove a key, whether it has a row or not, and print the version of the removal."""
    chosen = _bytes(key, in_hex)
    event = _event(writer, event_number)

    async def command() -> int | None:
        async with writing(data, config, take_over=take_over, url=url) as store:
            return await store.table(name).remove(chosen, expected_version=expected_version, **event)

    print_result(execute(command, hints=_HINTS), json, "version", "the key was removed")


def get(
    name: Table,
    key: Key,
    in_hex: InHex = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """Write the value of a key to stdout, as it is.

    With --hex as a line of hex, and with --json the key, the value and its version.
    """
    chosen = _bytes(key, in_hex)

    async def command() -> TableRow | None:
        async with reading(data, url) as view:
            return await view.table(name).get(chosen)

    row = execute(command, hints=_HINTS)
    if row is None:
        fail(f"table {name!r} has no row of key {_shown(chosen, in_hex)}")
    if json:
        output.print_json(_fields(row))
    elif in_hex:
        output.print_lines([row.value.hex()])
    else:
        output.write_all(output.STDOUT, row.value)


def ls(
    name: Table,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only keys that begin with PREFIX.", show_default=False)
    ] = "",
    start: Annotated[
        str, typer.Option("--start", metavar="KEY", help="Only from this key on.", show_default=False)
    ] = "",
    end: Annotated[str | None, typer.Option("--end", metavar="KEY", help="Only before this key.")] = None,
    limit: Limit = None,
    token: Token = None,
    long: Annotated[
        bool, typer.Option("--long", help="Also show versions, lengths of values, and how they begin.")
    ] = False,
    in_hex: InHex = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """List the keys of a table, one per line, in order.

    Bytes that are no text are shown as escapes; --hex and --json show all keys exactly.
    """
    bounds: dict[str, Any] = {
        "prefix": _bytes(prefix, in_hex),
        "start": _bytes(start, in_hex),
        "end": None if end is None else _bytes(end, in_hex),
    }
    rows: list[TableRow] = []

    async def command() -> str | None:
        after = token
        async with (
            reading(data, url) as view,
            aclosing(_pages(lambda **page: view.table(name).page(**bounds, **page), token, limit)) as pages,
        ):
            async for page in pages:
                after = page.token
                if json or long:
                    rows.extend(page.rows)
                else:
                    # As they come: there may be any number of them.
                    output.print_lines([_shown(row.key, in_hex) for row in page.rows])
        return after

    after = execute(command, hints=_HINTS)
    if json:
        output.print_json({"rows": [_fields(row) for row in rows], "token": after})
        return

    if long:
        shown = [
            (row.version, len(row.value), _shown(row.key, in_hex), _beginning(row.value, in_hex))
            for row in rows
        ]
        output.print_table(("version", "bytes", "key", "value"), shown, ("bytes",))
    if after is not None:
        output.print_note(f"there are more rows: --token {after}")


def changes(
    name: Table,
    since: Annotated[
        int,
        number_option("--since", "Only what changed after this version; default: all rows."),
    ] = 0,
    limit: Limit = None,
    token: Token = None,
    in_hex: InHex = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """List the rows that changed after a version, removed ones too, in the order of their keys.

    A row that changed several times is listed once, as it is now. It fails if not all changes since that
    version are known any more. What to pass as --since the next time is printed on stderr; in JSON it is
    `version`.
    """
    rows: list[TableChange] = []

    async def command() -> ChangesPage:
        async with (
            reading(data, url) as view,
            aclosing(_pages(lambda **page: view.table(name).changes(since, **page), token, limit)) as pages,
        ):
            async for page in pages:
                rows.extend(page.rows)
        return page

    last = execute(command, hints=_HINTS)
    if json:
        fields = {"rows": [_fields(row) for row in rows], "token": last.token, "version": last.version}
        output.print_json(fields)
        return

    shown = [
        (
            row.version,
            "removed" if row.value is None else "put",
            _shown(row.key, in_hex),
            _beginning(row.value or b"", in_hex),
        )
        for row in rows
    ]
    output.print_table(("version", "change", "key", "value"), shown)
    output.print_note(
        f"nothing more; later changes: --since {last.version}"
        if last.token is None
        else f"there are more changes: --token {last.token}"
    )


async def _pages(
    ask: Callable[..., Awaitable[P]], token: str | None, limit: int | None
) -> AsyncGenerator[P, None]:
    """Pages with at most ``limit`` rows together, at least one."""
    left = limit
    while left is None or left > 0:
        page = await ask(token=token, limit=_PAGE if left is None else min(left, _PAGE))
        yield page
        if (token := page.token) is None:
            return
        left = None if left is None else left - len(page.rows)


def _bytes(text: str, in_hex: bool) -> bytes:
    if not in_hex:
        # The shell's bytes: what is not UTF-8 arrives with surrogates (PEP 383).
        return text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no key in hex, two digits for each byte") from error


def _event(writer: str | None, event_number: int | None) -> dict[str, Any]:
    if (writer is None) != (event_number is None):
        raise typer.BadParameter("--writer and --event-number belong together")
    return {"writer_id": writer, "event_number": event_number}


def _shown(data: bytes, in_hex: bool) -> str:
    return data.hex() if in_hex else data.decode("utf-8", "backslashreplace")


def _beginning(value: bytes, in_hex: bool) -> str:
    # No character has more than four bytes.
    text = _shown(value[: 4 * _SHOWN], in_hex)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _fields(row: TableRow | TableChange) -> dict[str, Any]:
    value = None if row.value is None else b64encode(row.value).decode()
    return {"key": b64encode(row.key).decode(), "value": value, "version": row.version}
