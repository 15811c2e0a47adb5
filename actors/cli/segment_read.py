"""Commands that read segments, of a folder or of a service. They own nothing: see ``inspection.py`` for what
a view shows of a folder that is open elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .options import DEFAULT_DATA, Data, Json, Name, Service
from .running import execute, reading

if TYPE_CHECKING:
    from ...storage_backends.base.segments import SegmentInfo

_BLOCK_BYTES = 4 << 20


def read(
    name: Name,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="The first byte; default: the segment's start.")
    ] = None,
    size: Annotated[
        int | None, typer.Option("--size", min=0, help="How many bytes; default: all there are now.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to FILE instead of stdout.")
    ] = None,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """Write a segment's bytes to stdout, as they are.

    It ends at what was the tail when it began; `tail` goes on.
    """

    async def command() -> None:
        async with reading(data, url) as view:
            info = await view.segment_info(name)
            position = info.start_offset if offset is None else offset
            end = info.length if size is None else min(info.length, position + size)
            if position < info.start_offset:
                await view.read(name, position, 1)  # it says what was truncated

            with (
                _opened(file) as target,
                output.progress("reading", max(0, end - position), shown=_is_apart(target)) as advance,
            ):
                while position < end:
                    block = await view.read(name, position, min(_BLOCK_BYTES, end - position))
                    output.write_all(target, block)
                    position += len(block)
                    advance(len(block), 0)

    execute(command)


def tail(
    name: Name,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset",
            help="The first byte; a negative one counts from the end; default: the segment's start.",
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """Write a segment's bytes to stdout, and go on with what is appended.

    It ends when the segment is sealed and read through, or with Ctrl-C. What another process appends shows
    within about 0.2 s.
    """

    async def command() -> None:
        async with reading(data, url) as view:
            info = await view.segment_info(name)
            first = (
                info.start_offset
                if offset is None
                else offset
                if offset >= 0
                else max(info.start_offset, info.length + offset)
            )
            async for block in view.tail(name, first):
                output.write_all(output.STDOUT, block)

    execute(command)


def info(name: Name, json: Json = False, data: Data = DEFAULT_DATA, url: Service = None) -> None:
    """Show a segment's length, start, seal and attributes."""

    async def command() -> SegmentInfo:
        async with reading(data, url) as view:
            return await view.segment_info(name)

    found = execute(command)
    if json:
        output.print_json(_fields(found))
        return

    fields = _fields(found)
    attributes = fields.pop("attributes")
    width = max(map(len, fields))
    output.print_lines(
        [f"{key.replace('_', ' '):<{width}}  {_shown(value)}" for key, value in fields.items()]
    )
    output.print_lines(
        [f"{'attribute':<{width}}  {key} = {value}" for key, value in sorted(attributes.items())]
    )


def ls(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names that begin with it.", show_default=False)
    ] = "",
    long: Annotated[bool, typer.Option("--long", help="Show lengths and seals too.")] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """List the segments, one name a line."""

    async def command() -> list[SegmentInfo]:
        async with reading(data, url) as view:
            return [await view.segment_info(name) for name in await view.list_segments(prefix)]

    found = execute(command)
    if json:
        output.print_json([_fields(each) for each in found])
    elif long:
        rows = [
            (i.length, i.start_offset, i.flushed_length, "sealed" if i.sealed else "open", i.name)
            for i in found
        ]
        output.print_table(("length", "start", "flushed", "state", "name"), rows)
    else:
        output.print_lines([each.name for each in found])


def _fields(info: SegmentInfo) -> dict[str, Any]:
    import attrs

    return {**attrs.asdict(info), "attributes": dict(info.attributes)}


def _shown(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


@contextmanager
def _opened(file: Path | None) -> Iterator[int]:
    """The descriptor to write to."""
    if file is None:
        yield output.STDOUT
        return

    with open(file, "wb", buffering=0) as opened:
        yield opened.fileno()


def _is_apart(target: int) -> bool:
    """A bar between the bytes on the same terminal would spoil both."""
    return not os.isatty(target)
