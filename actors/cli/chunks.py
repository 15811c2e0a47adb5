"""Commands about chunks in long-term storage: list, lay out, verify, defragment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...storage_backends.base.errors import WrongSegmentKind
from . import output
from .options import DEFAULT_DATA, Config, Data, Json, Name, Names, TakeOver, check_selection
from .running import FAILED, execute, lengths_of, owning, viewing

if TYPE_CHECKING:
    from ...storage_backends.segments.operations.defrag import DefragResult
    from ..maintenance.report import ListedChunk, SegmentLayout, VerifyReport


def ls(
    prefix: Annotated[
        str,
        typer.Argument(
            metavar="PREFIX", help="Only chunks whose names begin with PREFIX.", show_default=False
        ),
    ] = "",
    unreferenced: Annotated[
        bool, typer.Option("--unreferenced", help="Only what no segment and no system table refers to.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """List the objects in long-term storage and the segments that refer to them.

    Unreferenced are chunks that no segment refers to and sorted runs that no system table refers to. They
    were left by a crash, wait for their deletion, or are new; an owner of the folder deletes them.

    They are printed as they come. If that fails on the way, the exit code is 1, and a list in JSON has no
    end.
    """
    from ..maintenance.report import ChunkUse, pages_of_chunks

    async def command(show: Callable[[list[ListedChunk]], None]) -> None:
        async with viewing(data) as view, aclosing(pages_of_chunks(view, prefix)) as pages:
            async for page in pages:
                show([each for each in page if not unreferenced or each.use is ChunkUse.UNREFERENCED])

    if json:
        with output.json_list() as add:
            execute(lambda: command(lambda found: add(map(output.as_json, found))))
    else:
        headers = ("length", "committed", "use", "segment", "name")
        with output.table(headers, ("committed",)) as add:
            execute(lambda: command(lambda found: add(map(_listed, found))))


def _listed(chunk: ListedChunk) -> tuple[Any, ...]:
    return chunk.length, chunk.committed, chunk.use.value, chunk.segment or "-", chunk.name


def layout(name: Name, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """Show a segment's chunks: where each begins in the segment, its length and its name.

    These are the flushed bytes; the rest of the segment is in the write-ahead log.
    """
    from ..maintenance.report import segment_layout

    async def command() -> SegmentLayout:
        async with viewing(data) as view:
            return await segment_layout(view, name)

    found = execute(command)
    if json:
        output.print_json(output.as_json(found))
        return

    rows = [(each.start, each.length, each.append_starts, each.name) for each in found.chunks]
    output.print_table(("start", "length", "append starts", "chunk"), rows, ("append starts",))
    output.print_lines(["", *_summary(found)])


def _summary(found: SegmentLayout) -> list[str]:
    info, record = found.info, found.record
    held = output.count(info.length - info.start_offset, "byte")
    unflushed = info.length - max(info.flushed_length, info.start_offset)
    lines = [f"{held} from {info.start_offset} on, {unflushed} not flushed"]
    if record is None:
        return [*lines, "nothing of it is flushed yet"]

    state = "sealed" if record.sealed else "open"
    chunks, rolling = output.count(len(found.chunks), "chunk"), output.count(record.rolling_size, "byte")
    return [*lines, f"{chunks}, {state}, rolling at {rolling}, written by epoch {record.owner_epoch}"]


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Verify these segments; default: all.", show_default=False),
    ] = None,
    json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Read all committed bytes and verify every checksum.

    The exit code is 0 if all chunks are sound, 1 if one is missing, too short or damaged. Unreferenced
    objects are counted, but not as problems.
    """
    from ..maintenance.report import verify as verify_chunks

    async def command() -> VerifyReport:
        async with viewing(data) as view:
            # Without a total: it grows while chunks are listed.
            with output.progress("verifying", None) as advance:
                return await verify_chunks(view, names or [], progress=advance)

    hint = "`tierlog tables verify` reads the rows of all tables"
    report = execute(command, hints={WrongSegmentKind: hint})
    if json:
        output.print_json({"sound": report.sound, **output.as_json(report)})
    else:
        _show(report)
    if not report.sound:
        raise typer.Exit(FAILED)


def defrag(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="Defragment all segments.")] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Join small chunks of segments into large ones. Flushes first.

    The bytes of the segments do not change. The owner of the folder deletes the old chunks later. If the
    command is interrupted, the chunks joined so far stay joined.
    """
    check_selection(names, everything)

    async def command() -> dict[str, DefragResult]:
        from ..maintenance.defrag import defrag_segment

        done: dict[str, DefragResult] = {}
        async with owning(data, config, take_over=take_over) as store:
            # Only what is in chunks can be joined.
            await store.flush()
            lengths = await lengths_of(store, names)
            with output.progress("joining", sum(lengths.values())) as advance:
                for name, length in lengths.items():
                    done[name] = await defrag_segment(store, name)
                    advance(length, 0)
            await store.flush()
        return done

    done = execute(command)
    if json:
        output.print_json([{"segment": name, **output.as_json(result)} for name, result in done.items()])
    else:
        rows = [(result.joined, result.made, result.copied, name) for name, result in done.items()]
        output.print_table(("joined", "made", "bytes", "segment"), rows)


def _show(report: VerifyReport) -> None:
    screen = output.console()
    for problem in report.problems:
        where = f" of {problem.segment}" if problem.segment else ""
        screen.print(
            f"problem: {problem.chunk}{where}, offset {problem.offset}: {problem.message}",
            style="red",
            soft_wrap=True,
        )
    if report.unreferenced:
        found, verb = output.count(report.unreferenced, "object"), "is" if report.unreferenced == 1 else "are"
        screen.print(
            f"{found} with {output.show_bytes(report.unreferenced_bytes)} {verb} unreferenced",
            style="yellow",
        )
    chunks, segments = output.count(report.chunks, "chunk"), output.count(report.segments, "segment")
    screen.print(f"read {chunks} of {segments} with {output.show_bytes(report.bytes)}")
    result = "sound" if report.sound else f"not sound, problems: {len(report.problems)}"
    screen.print(result, style="green" if report.sound else "red")
