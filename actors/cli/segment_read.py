"""Commands that read segments of a folder or of a service. They own nothing; ``store/read_only.py`` documents
what a view shows of a folder that is open elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...storage_backends.base.errors import InvalidArgument, SegmentNotFound, WrongSegmentKind
from . import output
from .options import DEFAULT_DATA, NUMBER_MAX, Data, Json, Name, Service, file_path, number_option
from .running import NO_HINTS, Hints, execute, reading

if TYPE_CHECKING:
    from ...storage_backends.base.segments import AttributeName, SegmentInfo
    from ..gateway.client.async_client import Client
    from ..store.lts_view import LtsView
    from ..store.read_only import StoreView

    Readable = StoreView | Client | LtsView

_BLOCK_BYTES = 4 << 20
_OF_BYTES = frozenset(("length", "start_offset", "flushed_length"))
"""What is 0 for a table."""
Prefix = Annotated[
    str, typer.Argument(metavar="PREFIX", help="Only names that begin with PREFIX.", show_default=False)
]
Long = Annotated[bool, typer.Option("--long", help="Also show lengths, seals and kinds.")]
Offset = Annotated[
    int | None, number_option("--offset", "The first byte to read; default: the segment's start.")
]
Size = Annotated[int | None, number_option("--size", "The number of bytes; default: up to the tail.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", parser=file_path, metavar="FILE", help="Write to FILE instead of stdout."),
]


def read(
    name: Name,
    offset: Offset = None,
    size: Size = None,
    file: Output = None,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """Write a segment's bytes to stdout.

    It stops at the tail as it was at the start; `tail` continues from there.
    """

    async def command() -> None:
        async with reading(data, url) as view:
            await write_segment(view, name, offset, size, file, "" if url else os.fspath(data))

    execute(command)


async def write_segment(
    view: Readable, name: str, offset: int | None, size: int | None, file: Path | None, place: str
) -> None:
    """Write the segment's bytes, up to the tail as it is now, to ``file`` or stdout. Raises
    ``InvalidArgument`` for a file of the store itself, which is in ``place``, unless a service has it."""
    if place and file is not None:
        _check_output(file, (place, *(f"{place}/{part}" for part in ("wal", "lts"))))
    info = await view.segment_info(name)
    if info.is_table:
        raise WrongSegmentKind.of(name, is_table=True)
    position = info.start_offset if offset is None else offset
    # Fixed here: a busy writer must not keep the command going.
    end = info.length if size is None else min(info.length, position + size)
    if position < info.start_offset:
        await view.read(name, position, 1)  # raises the error that names the truncation

    with (
        _opened(file) as target,
        output.progress("reading", max(0, end - position), shown=not os.isatty(target)) as advance,
    ):
        while position < end:
            block = await view.read(name, position, min(_BLOCK_BYTES, end - position))
            output.write_all(target, block, os.fspath(file or "stdout"))
            position += len(block)
            advance(len(block), 0)


def tail(
    name: Name,
    offset: Annotated[
        int | None,
        number_option(
            "--offset",
            "The first byte to read; negative: from the end; default: the segment's start. An offset beyond "
            "the end is waited for.",
            least=-NUMBER_MAX,
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """Write a segment's bytes to stdout, and continue with what is appended.

    It ends at the end of a sealed segment, or with Ctrl-C. Appends of other processes appear within about 0.2
    s.
    """

    async def command() -> None:
        async with reading(data, url) as view:
            info = await view.segment_info(name)
            first = info.start_offset if offset is None else offset
            if first < 0:
                # As `tail -c`: more bytes than there are means all of them.
                first = max(info.start_offset, info.length + first)
            if first > info.length and not info.sealed:
                sys.stderr.write(f"waiting for offset {first}: the segment ends at {info.length} now\n")
            async for block in view.tail(name, first):
                output.write_all(output.STDOUT, block)

    execute(command)


def info(name: Name, json: Json = False, data: Data = DEFAULT_DATA, url: Service = None) -> None:
    """Show a segment's length, start offset, seal and attributes; of a table what it has of these."""

    async def command() -> SegmentInfo:
        async with reading(data, url) as view:
            return await view.segment_info(name)

    found = execute(command)
    fields = output.as_json(found)
    if json:
        output.print_json(fields)
        return

    attributes = fields.pop("attributes")
    if found.is_table:
        fields = {name: value for name, value in fields.items() if name not in _OF_BYTES}
    shown = {
        name: ("yes" if value else "no") if isinstance(value, bool) else value
        for name, value in fields.items()
    }
    output.print_fields(
        shown | {"attribute": [f"{key} = {value}" for key, value in sorted(attributes.items())]}
    )


def attributes(
    name: Name,
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="PREFIX", help="Only names, or ids, that begin with PREFIX.", show_default=False
        ),
    ] = "",
    ids: Annotated[bool, typer.Option("--ids", help="List attributes that have ids, in hex.")] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """List all attributes of a segment, one per line, in order."""
    first: AttributeName = _id_prefix(prefix) if ids else prefix

    async def command() -> dict[str, int]:
        found: dict[str, int] = {}
        after: AttributeName | None = None
        async with reading(data, url) as view:
            while True:
                page = await view.list_attributes(name, first, after=after)
                for key, value in page.attributes.items():
                    found[key.hex() if isinstance(key, bytes) else key] = value
                if (after := page.after) is None:
                    return found

    found = execute(command)
    if json:
        output.print_json(found)
    else:
        output.print_lines([f"{key} = {value}" for key, value in found.items()])


def _id_prefix(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no beginning of an id, in pairs of hex digits") from error


def ls(
    prefix: Prefix = "",
    long: Long = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    url: Service = None,
) -> None:
    """List the segments, one name per line.

    They are printed as they come. If that fails on the way, the exit code is 1, and a list in JSON has no
    end.
    """
    list_segments(lambda: reading(data, url), prefix, long=long, json=json)


def list_segments(
    opened: Callable[[], AbstractAsyncContextManager[Readable]],
    prefix: str,
    *,
    long: bool,
    json: bool,
    hints: Hints = NO_HINTS,
) -> None:
    """List the segments of what ``opened`` opens."""
    from ...storage_backends.base.list_pages import all_pages

    async def print_names() -> None:
        async with (
            opened() as view,
            aclosing(all_pages(view.page_of_segments, prefix)) as pages,
        ):
            async for page in pages:
                output.print_lines(page.names)

    async def describe(show: Callable[[list[SegmentInfo]], None]) -> None:
        # A service is asked once for each page of names, and once more for each segment that is described.
        async with (
            opened() as view,
            aclosing(all_pages(view.page_of_segments, prefix)) as pages,
        ):
            async for page in pages:
                found: list[SegmentInfo] = []
                for name in page.names:
                    with suppress(SegmentNotFound):  # deleted since it was listed
                        found.append(await view.segment_info(name))
                show(found)

    if json:
        with output.json_list() as add:
            execute(lambda: describe(lambda found: add(map(output.as_json, found))), hints=hints)
    elif long:
        headers = ("length", "start", "flushed", "state", "name")
        with output.table(headers, ("flushed", "start")) as add:
            execute(lambda: describe(lambda found: add(map(_described, found))), hints=hints)
    else:
        execute(print_names, hints=hints)


def _described(info: SegmentInfo) -> tuple[Any, ...]:
    state = "sealed" if info.sealed else "open"
    shown = f"{state} table" if info.is_table else state
    return info.length, info.start_offset, info.flushed_length, shown, info.name


def _check_output(file: Path, folders: Sequence[str]) -> None:
    """``folders`` may be links."""
    target = Path(os.path.realpath(file))
    for folder in folders:
        if target.is_relative_to(os.path.realpath(folder)):
            raise InvalidArgument(f"--output {file} is in {folder}, the store's own folder: name another one")


@contextmanager
def _opened(file: Path | None) -> Iterator[int]:
    """The descriptor to write to."""
    if file is None:
        yield output.STDOUT
        return

    # Unbuffered: `write_all` writes to the descriptor.
    with open(file, "wb", buffering=0) as opened:
        yield opened.fileno()
