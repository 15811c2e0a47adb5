"""Commands that change segments. Each opens the store as its owner, or a client of a service, does one thing,
and closes it (see ``running.writing``)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import output
from .options import DEFAULT_DATA, Chunks, Config, Data, Name, Service, TakeOver
from .running import execute, writing

if TYPE_CHECKING:
    from ..gateway.client.async_client import Client
    from ..store.store import SegmentStore

_DIGITS = re.compile(r"[0-9]{1,20}")


def _carry_out(
    data: Path,
    config: Path | None,
    take_over: bool,
    url: str | None,
    act: Callable[[SegmentStore | Client], Awaitable[int | None]],
) -> None:
    """Do ``act`` as the folder's owner or the service's client; print the number that it gives, if any."""

    async def command() -> int | None:
        async with writing(data, config, take_over=take_over, url=url) as store:
            return await act(store)

    number = execute(command)
    if number is not None:
        output.print_lines([str(number)])


def _parse_size(text: str) -> int:
    import attrs

    from ..settings.configuration import WriterConfig
    from ..settings.units import Setting, UnitError

    setting = attrs.fields_dict(WriterConfig)["rolling_size"].metadata[Setting]
    try:
        return int(setting.read(int(text) if _DIGITS.fullmatch(text) else text))
    except UnitError as error:
        raise typer.BadParameter(str(error), param_hint="--rolling-size") from error


def create(
    name: Name,
    rolling_size: Annotated[
        str | None,
        typer.Option(
            "--rolling-size", metavar="SIZE", help='Its chunks roll at this size, as 67108864 or "64 MiB".'
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    chunks: Chunks = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Make an empty segment, and the data folder if it is new."""
    size = None if rolling_size is None else _parse_size(rolling_size)

    async def command() -> None:
        async with writing(data, config, take_over=take_over, create=True, url=url, chunks=chunks) as store:
            await store.create_segment(name, rolling_size=size)

    execute(command)


def append(
    name: Name,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Append the file's bytes; default: stdin.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--data-text", metavar="TEXT", help="Append this text, as UTF-8.")
    ] = None,
    lines: Annotated[
        bool,
        typer.Option("--lines", help="Each line, with its line end, is one event; written as lines come in."),
    ] = False,
    writer: Annotated[
        str | None,
        typer.Option("--writer", metavar="ID", help="The writer's id: repeats of its events change nothing."),
    ] = None,
    event_number: Annotated[
        int | None, typer.Option("--event-number", min=0, help="The writer's number of the (first) event.")
    ] = None,
    expected_offset: Annotated[
        int | None, typer.Option("--expected-offset", min=0, help="Append only if the segment ends here.")
    ] = None,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Append bytes and print the offset at which they begin, once they are durable.

    Large input is appended in pieces of up to 4 MiB, each durable before the next; with --writer and without
    --lines it must fit into one append. Sent again with the same --writer and --event-number, an append that
    was applied before changes nothing.
    """
    if file is not None and text is not None:
        raise typer.BadParameter("give either --file or --data-text, not both")
    if (writer is None) != (event_number is None):
        raise typer.BadParameter("--writer and --event-number belong together")

    from . import stdin_append as feeding

    async def command() -> int | None:
        with feeding.opened(file, text) as source:
            async with writing(data, config, take_over=take_over, url=url) as store:
                return await feeding.feed(
                    store, name, source, feeding.Terms(lines, writer, event_number, expected_offset)
                )

    offset = execute(command)
    if offset is not None:
        output.print_lines([str(offset)])


def seal(
    name: Name,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Refuse appends from now on, and print the final length. Sealing a sealed segment is fine."""
    _carry_out(data, config, take_over, url, lambda store: store.seal_segment(name))


def truncate(
    name: Name,
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=0, help="Bytes before it are dropped.", show_default=False)
    ],
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Drop the bytes before an offset: they can no longer be read, and their space is freed in time."""
    _carry_out(data, config, take_over, url, lambda store: store.truncate_segment(name, offset))


def merge(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The segment that grows.", show_default=False)
    ],
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Sealed segments, in order.", show_default=False)
    ],
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Move the bytes of sealed segments to the end of another, all or nothing, and print where the first one
    begins.

    The sources are gone afterwards. They must live in the target's container: name them like it, with a
    suffix, as app/events#part-1.
    """
    _carry_out(data, config, take_over, url, lambda store: store.merge_segments(target, sources))


def delete(
    name: Name,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Remove a segment and its bytes. Its name can be used again at once."""
    _carry_out(data, config, take_over, url, lambda store: store.delete_segment(name))
