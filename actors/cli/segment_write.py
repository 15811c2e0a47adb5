"""Commands that change segments. Each opens the store as its owner, or a client of a service, runs one verb
and closes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...storage_backends.base.os_errors import explain
from . import output
from .options import (
    DEFAULT_DATA,
    Chunks,
    Config,
    Data,
    Json,
    Name,
    Service,
    TakeOver,
    file_path,
    number_option,
    whole_number,
)
from .running import execute, fail, writing

if TYPE_CHECKING:
    from ..gateway.client.async_client import Client
    from ..store.store import SegmentStore


def run_verb(
    target: AbstractAsyncContextManager[SegmentStore | Client],
    act: Callable[[SegmentStore | Client], Awaitable[int | None]],
    json: bool,
    result: str = "",
) -> None:
    """Run ``act`` on the folder's store or the service's client; print the number that it returns, if any.
    In JSON it is the field ``result``, as in the service's answer."""

    async def command() -> int | None:
        async with target as store:
            return await act(store)

    number = execute(command)
    print_result(number, json, result, "the command was carried out")


def print_result(number: int | None, json: bool, result: str, outcome: str) -> None:
    """``outcome`` is what happened, even if stdout cannot be written."""
    try:
        if json:
            output.print_json({result: number} if result else {})
        elif number is not None:
            output.print_lines([str(number)])
    except OSError as error:
        # Exit code 1 alone would read as "nothing was done", and a script would append again.
        known = "" if number is None else f", {result} {number}"
        fail(f"{explain(error)}; but {outcome}{known}")


def _parse_size(text: str) -> int:
    import attrs

    from ..settings.configuration import WriterConfig
    from ..settings.units import Setting, UnitError

    # The configuration's own parser and range, so that both accept the same sizes.
    setting = attrs.fields_dict(WriterConfig)["rolling_size"].metadata[Setting]
    try:
        return int(setting.read_text(text))
    except UnitError as error:
        raise typer.BadParameter(str(error), param_hint="--rolling-size") from error


def check_chunks(context: typer.Context, url: str | None) -> None:
    """Refuse ``--chunks`` with ``--url``."""
    source = context.get_parameter_source("chunks")
    # TIERLOG_CHUNKS may be set for other commands; only the option contradicts --url.
    if url is not None and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("--chunks is for a new folder: the service at --url has its storage already")


def create(
    context: typer.Context,
    name: Name,
    rolling_size: Annotated[
        str | None,
        typer.Option(
            "--rolling-size", metavar="SIZE", help='The size of its chunks, such as 67108864 or "64 MiB".'
        ),
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if the segment exists; it stays as it is.")
    ] = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    chunks: Chunks = None,
    take_over: TakeOver = False,
    url: Service = None,
    json: Json = False,
) -> None:
    """Create an empty segment, and the data folder if there is none."""
    size = None if rolling_size is None else _parse_size(rolling_size)
    check_chunks(context, url)
    store = writing(data, config, take_over=take_over, creates=name, url=url, chunks=chunks)
    run_verb(store, lambda store: store.create_segment(name, rolling_size=size, exist_ok=exist_ok), json)


def append(
    name: Name,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", parser=file_path, metavar="FILE", help="Append the bytes of a file; default: stdin."
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option("--data-text", metavar="TEXT", help="Append a text, as UTF-8.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Every line, with its line end, is one event.")
    ] = False,
    writer: Annotated[
        str | None, typer.Option("--writer", metavar="ID", help="The writer's id, for idempotent appends.")
    ] = None,
    event_number: Annotated[
        int | None,
        number_option("--event-number", "The writer's number of the first event."),
    ] = None,
    expected_offset: Annotated[
        int | None,
        number_option("--expected-offset", "Append only if the segment ends at this offset."),
    ] = None,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
    json: Json = False,
) -> None:
    """Append bytes and print the offset at which they begin, once they are durable.

    Input is appended in pieces of up to 4 MiB, each durable before the next; with --writer and without
    --lines it must fit into one append. An append that is repeated with the same --writer and --event-number
    is applied once.
    """
    if file is not None and text is not None:
        raise typer.BadParameter("give either --file or --data-text, not both")
    if (writer is None) != (event_number is None):
        raise typer.BadParameter("--writer and --event-number belong together")

    from .stdin_append import AppendOptions, append_to, open_input

    options = AppendOptions(lines, writer, event_number, expected_offset)

    async def command() -> int | None:
        # Before the store: a file that cannot be read must not fence an owner with --take-over.
        with open_input(file, text) as source:
            store = writing(data, config, take_over=take_over, url=url)
            return await append_to(store, name, source, options)

    print_result(execute(command), json, "offset", "the bytes were appended")


def seal(
    name: Name,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
    json: Json = False,
) -> None:
    """Seal a segment against further appends and print its final length. A sealed segment stays sealed."""
    store = writing(data, config, take_over=take_over, url=url)
    run_verb(store, lambda store: store.seal_segment(name), json, "length")


def truncate(
    name: Name,
    offset: Annotated[
        int,
        typer.Argument(
            metavar="OFFSET", parser=whole_number(0), help="The new start of the segment.", show_default=False
        ),
    ],
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
    json: Json = False,
) -> None:
    """Truncate a segment: the bytes before OFFSET can no longer be read, and their space is freed later."""
    store = writing(data, config, take_over=take_over, url=url)
    run_verb(store, lambda store: store.truncate_segment(name, offset), json)


def merge(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The segment that is appended to.", show_default=False)
    ],
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Sealed segments, in this order.", show_default=False),
    ],
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
    json: Json = False,
) -> None:
    """Merge sealed segments into another, atomically, and print the offset in it where the first one begins.

    The sources are deleted. They must be in the target's container: give them its name and a suffix, such as
    app/events#part-1.
    """
    store = writing(data, config, take_over=take_over, url=url)
    run_verb(store, lambda store: store.merge_segments(target, sources), json, "offset")


def delete(
    name: Name,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
    json: Json = False,
) -> None:
    """Delete a segment and its bytes. The name can be reused at once."""
    store = writing(data, config, take_over=take_over, url=url)
    run_verb(store, lambda store: store.delete_segment(name), json)
