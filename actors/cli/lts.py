"""Commands on what long-term storage alone has of a store, without its logs: list, read, verify."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...storage_backends.base.errors import DataCorruption, SegmentNotFound
from . import output
from .interrupts import end_at_once
from .journal import problem_line
from .options import Config, Json, Name
from .running import FAILED, Hints, execute, opening, read_settings
from .segment_read import Long, Offset, Output, Prefix, Size, list_segments, write_segment

if TYPE_CHECKING:
    from ..maintenance.lts import LtsContainerReport, LtsReport
    from ..store.lts_view import LtsView

_HINTS: Hints = {
    DataCorruption: "`tierlog lts verify` lists all damage",
    SegmentNotFound: "`tierlog lts ls` shows the names",
}
_NO_DOCTOR: Hints = {DataCorruption: ""}
"""Which looks at a folder with logs."""


def _checked(text: str) -> str:
    if not text:
        raise typer.BadParameter("it is empty: name a folder or a bucket")
    return text


Place = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        parser=_checked,
        help="A data folder, its lts/ or a copy of that, or s3://BUCKET/PREFIX.",
        show_default=False,
    ),
]


@asynccontextmanager
async def _viewing(place: str, config: Path | None) -> AsyncIterator[LtsView]:
    from ..store.lts_view import open_lts

    end_at_once()
    async with opening(place, open_lts(place, config=read_settings(config, None))) as view:
        yield view


def ls(
    place: Place, prefix: Prefix = "", long: Long = False, json: Json = False, config: Config = None
) -> None:
    """List the segments that long-term storage has, one name per line."""
    list_segments(lambda: _viewing(place, config), prefix, long=long, json=json, hints=_HINTS)


def cat(
    place: Place,
    name: Name,
    offset: Offset = None,
    size: Size = None,
    file: Output = None,
    config: Config = None,
) -> None:
    """Write the bytes of a segment that long-term storage has to stdout."""

    async def command() -> None:
        async with _viewing(place, config) as view:
            await write_segment(view, name, offset, size, file, place)

    execute(command, hints=_HINTS)


def verify(place: Place, json: Json = False, config: Config = None) -> None:
    """Verify that long-term storage alone has a whole store: journals, tables, and every byte of the chunks.

    The exit code is 0 if it has, 1 if an object is damaged or missing, or if a segment was published as of
    two moments because it changed during the last full flush: what can be read of such a segment is sound,
    and the next flush publishes it again.
    """
    from ..maintenance.lts import verify_lts

    async def command() -> LtsReport:
        async with _viewing(place, config) as view:
            with output.progress("verifying", None) as advance:
                return await verify_lts(view, progress=advance)

    report = execute(command, hints=_NO_DOCTOR)
    if json:
        output.print_json(_fields(report))
    else:
        _show(report)
    if not report.consistent:
        raise typer.Exit(FAILED)


def _show(report: LtsReport) -> None:
    rows = [(each.container, *_as_of(each)) for each in report.containers]
    output.print_table(("container", "element", "cycle", "created"), rows)
    lines = [problem_line(problem) for each in report.containers for problem in each.problems]
    if report.chunks is not None:
        lines += [
            f"{problem.chunk}, offset {problem.offset}: {problem.message}"
            for problem in report.chunks.problems
        ]
    damaged = len(lines)
    lines += [
        f"{found.segment or 'container ' + str(each.container)}: {found.message}"
        for each in report.containers
        for found in each.inconsistencies
    ]
    output.print_lines(lines)
    if report.chunks is not None:
        chunks = output.count(report.chunks.chunks, "chunk")
        output.print_lines([f"read {chunks} with {output.show_bytes(report.chunks.bytes)}"])
    if damaged:
        verdict = f"not sound, problems: {damaged}"
    elif lines:
        verdict = "sound, and not of one moment: flush the store, or read only what `tierlog lts ls` shows"
    else:
        verdict = "sound, each segment as of one moment"
    output.print_lines([verdict])


def _as_of(each: LtsContainerReport) -> tuple[object, ...]:
    element = each.element
    if element is None:
        return "-", "-", "-"
    return element.n, element.progress.cycle, output.show_time(element.time_ms)


def _fields(report: LtsReport) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "consistent": report.consistent,
        "containers": [
            {
                "container": each.container,
                "element": None if each.element is None else each.element.n,
                "cycle": None if each.element is None else each.element.progress.cycle,
                "created_ms": None if each.element is None else each.element.time_ms,
                "problems": [output.as_json(problem) for problem in each.problems],
                "inconsistencies": [output.as_json(found) for found in each.inconsistencies],
            }
            for each in report.containers
        ],
        "chunks": None if report.chunks is None else output.as_json(report.chunks),
    }
