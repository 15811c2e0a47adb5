"""Commands about chunks in long-term storage: which there are, which make a segment, whether they are
whole."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .options import DEFAULT_DATA, Config, Data, Json, Name, TakeOver
from .running import FAILED, execute, viewing, writing

if TYPE_CHECKING:
    from ...storage_backends.segments.operations.defrag import DefragResult
    from ..maintenance.report import ListedChunk, SegmentLayout, VerifyReport


def ls(
    prefix: Annotated[
        str,
        typer.Argument(metavar="[PREFIX]", help="Only chunks whose name begins with it.", show_default=False),
    ] = "",
    loose: Annotated[
        bool, typer.Option("--unreferenced", help="Only chunks that no segment refers to.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """List what lies in long-term storage, and which segment refers to it.

    Chunks that nothing refers to were left by a crash or a flush under way; whoever opens the folder next
    collects them.
    """
    from ..maintenance.report import ChunkUse, list_chunks

    async def command() -> list[ListedChunk]:
        async with viewing(data) as view:
            found = await list_chunks(view, prefix)
            return [each for each in found if not loose or each.use is ChunkUse.UNREFERENCED]

    found = execute(command)
    if json:
        output.print_json([_fields(each) for each in found])
    else:
        rows = [
            (each.length, each.committed, each.use.value, each.segment or "-", each.name) for each in found
        ]
        output.print_table(("length", "committed", "use", "segment", "name"), rows)


def layout(name: Name, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """Show a segment's chain of chunks: where each begins in the segment, how long it is, and its name.

    It shows what is flushed; the rest of the segment is in the write-ahead log.
    """
    from ..maintenance.report import segment_layout

    async def command() -> SegmentLayout:
        async with viewing(data) as view:
            return await segment_layout(view, name)

    found = execute(command)
    if json:
        output.print_json(_fields(found))
        return

    rows = [(each.start, each.length, each.append_starts, each.name) for each in found.chunks]
    output.print_table(("start", "length", "append starts", "chunk"), rows)
    output.print_lines(["", *_told(found)])


def _told(found: SegmentLayout) -> list[str]:
    info, record = found.info, found.record
    held = output.count(info.length - info.start_offset, "byte")
    lines = [f"{held} from {info.start_offset} on, {info.length - info.flushed_length} not flushed"]
    if record is None:
        return [*lines, "long-term storage knows nothing of it yet"]

    state = "sealed" if record.sealed else "open"
    chunks, rolling = output.count(len(found.chunks), "chunk"), output.count(record.rolling_size, "byte")
    return [*lines, f"{chunks}, {state}, rolling at {rolling}, written by epoch {record.owner_epoch}"]


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these segments; default: all.", show_default=False),
    ] = None,
    json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Read all committed bytes and compare every checksum.

    Exit code 0 if all chunks are whole, 1 if one is missing, too short or damaged. Chunks that nothing refers
    to are counted, not blamed.
    """
    from ..maintenance.report import verify as examine

    async def command() -> VerifyReport:
        async with viewing(data) as view:
            with output.progress("verifying", None) as advance:
                return await examine(view, names or [], progress=advance)

    report = execute(command)
    if json:
        output.print_json({"sound": report.sound, **_fields(report)})
    else:
        _show(report)
    if not report.sound:
        raise typer.Exit(FAILED)


def defrag(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="The segments' names.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Defragment all segments.")] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Join small chunks of segments into large ones. It flushes first.

    The bytes of a segment do not change. The old chunks are deleted in time by whoever has the folder open.
    What was joined when it is interrupted stays joined.
    """
    if bool(names) == everything:
        raise typer.BadParameter("name segments, or take --all")

    async def command() -> dict[str, DefragResult]:
        from ..maintenance.maintenance import defrag_segment
        from ..store.store import SegmentStore

        done: dict[str, DefragResult] = {}
        async with writing(data, config, take_over=take_over) as store:
            assert isinstance(store, SegmentStore)  # there is no service in it
            await store.flush()
            wanted = names or await store.list_segments()
            lengths = [(await store.segment_info(name)).length for name in wanted]
            with output.progress("joining", sum(lengths)) as advance:
                for name, length in zip(wanted, lengths, strict=True):
                    done[name] = await defrag_segment(store, name)
                    advance(length, 0)
            await store.flush()
        return done

    done = execute(command)
    if json:
        output.print_json([{"segment": name, **_fields(result)} for name, result in done.items()])
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
        loose, be = output.count(report.unreferenced, "chunk"), "is" if report.unreferenced == 1 else "are"
        screen.print(
            f"{loose} with {output.show_bytes(report.unreferenced_bytes)} {be} not referred to",
            style="yellow",
        )
    chunks, segments = output.count(report.chunks, "chunk"), output.count(report.segments, "segment")
    screen.print(f"read {chunks} of {segments} with {output.show_bytes(report.bytes)}")
    verdict = "whole" if report.sound else f"not whole, problems: {len(report.problems)}"
    screen.print(verdict, style="green" if report.sound else "red")


def _fields(found: Any) -> dict[str, Any]:
    """As JSON has it."""
    import attrs

    def plain(instance: object, attribute: object, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        return value.value if isinstance(value, Enum) else value

    return attrs.asdict(found, value_serializer=plain)
