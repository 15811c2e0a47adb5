"""Commands for import and export of the legacy layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...storage_backends.base.errors import SegmentNotFound
from . import output
from .options import DEFAULT_DATA, Config, Data, Json, Names, TakeOver, check_selection
from .running import FAILED, Hints, execute, lengths_of, owning

if TYPE_CHECKING:
    from ..legacy_rolling.export import Exported
    from ..maintenance.transfer import Imported

_IMPORT_HINTS: Hints = {
    SegmentNotFound: "it needs a file NAME$header in long-term storage; `tierlog chunks ls` lists the files"
}


def export(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="Export all segments.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite header files with other contents.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Write header files of the legacy layout, so that legacy software can read these segments. Flushes
    first.

    No data is copied. A header describes the segment as it is now, without later appends. It cannot express a
    start offset inside a chunk: legacy readers begin at the start of that chunk, and the column
    "readable again" counts the truncated bytes that they read. The header of a sealed segment is read-only.
    """
    check_selection(names, everything)

    async def command() -> list[Exported]:
        from ..maintenance.transfer import export_segment

        async with owning(data, config, take_over=take_over) as store:
            await store.flush()
            lengths = await lengths_of(store, names)
            done: list[Exported] = []
            with output.progress("exporting", sum(lengths.values())) as advance:
                for name in lengths:
                    done.append(await export_segment(store, name, replace=replace))
                    advance(done[-1].length, 0)
            return done

    done = execute(command)
    if json:
        output.print_json([output.as_json(each) for each in done])
    else:
        rows = [
            (e.length, e.start_offset, e.hidden_bytes, e.chunks, "sealed" if e.sealed else "open", e.header)
            for e in done
        ]
        output.print_table(
            ("length", "start", "readable again", "chunks", "state", "header"),
            rows,
            ("readable again", "chunks", "start"),
        )


def import_(
    names: Names = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Import all segments that have a header file.")
    ] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="PREFIX", help="With --all: only names that begin with PREFIX.")
    ] = "",
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Import segments of the legacy layout whose files are in long-term storage.

    All their bytes are read once, for checksums. The files stay where they are and are deleted with their
    segment. Legacy software must not write to them any more. With --all, segments that cannot be imported are
    skipped and listed.
    """
    check_selection(names, everything)

    async def command() -> list[Imported]:
        from ..maintenance.transfer import import_segment, legacy_segments, try_import

        async with owning(data, config, take_over=take_over) as store:
            wanted = names or await legacy_segments(store, prefix)
            # A segment that the user named must be imported; of --all one bad header must not stop the
            # others.
            act = import_segment if names else try_import
            with output.progress("importing", None) as advance:
                return [await act(store, name, advance) for name in wanted]

    done = execute(command, hints=_IMPORT_HINTS)
    if json:
        output.print_json([output.as_json(each) for each in done])
    else:
        output.print_table(
            ("length", "outcome", "name", ""), [(e.length, e.outcome.value, e.name, e.reason) for e in done]
        )
    if any(each.outcome.value == "failed" for each in done):
        raise typer.Exit(FAILED)
