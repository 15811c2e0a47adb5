"""Commands about the system tables: what they have where; list and verify their sorted runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from . import output
from .journal import print_verdict
from .options import DEFAULT_DATA, Data, Json, container_option
from .running import execute, viewing, viewing_storage

if TYPE_CHECKING:
    from ..maintenance.tables import Generation, ListedRun, TableInfo, TableReport

Container = Annotated[int | None, container_option("table")]


def ls(container: Container = None, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """List the sorted runs of each container's system table, the newest first.

    They hold what full flushes have published: the records of segments and chunks, attributes, and the rows
    of tables. Newer rows are in the write-ahead log. Local copies are in the folder `runs` beside the log.
    """
    from ..maintenance.tables import list_runs

    async def command() -> list[ListedRun]:
        async with viewing_storage(data) as view:
            return await list_runs(view, container)

    listed = execute(command)
    if json:
        output.print_json([_fields(each) for each in listed])
    else:
        headers = ("container", "cycles", "rows", "tombstones", "size", "local", "run")
        output.print_table(headers, [_row(each) for each in listed], ("tombstones",))


def info(container: Container = None, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """Show what each container's system table has in memory and in sorted runs, and what is left to do.

    It has the records of segments and chunks, attributes, and the rows of tables: those of `tierlog table`.
    `waiting` are rows in memory that no run has yet: the next full flush publishes them. Below each container
    are its generations, the runs of one flush or one merge, the newest first; `merge due` are the runs and
    bytes that the next merge takes, and `missing` are local copies that an owner fetches. Of an open store
    it is what the log shows; its metrics are in docs/observability.md.
    """
    from ..maintenance.tables import describe_tables

    async def command() -> list[TableInfo]:
        async with viewing(data) as view:
            return await describe_tables(view, container)

    tables = execute(command)
    if json:
        output.print_json([_table_fields(each) for each in tables])
    else:
        headers = ("container", "what", "runs", "rows", "size", "missing")
        output.print_table(headers, [row for each in tables for row in _table_rows(each)], ("missing",))


def verify(container: Container = None, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """Read all sorted runs and their local copies, and verify every checksum.

    The exit code is 0 if they are sound, 1 if a run is missing or damaged, or a local copy is damaged. A
    missing local copy is no problem: an owner fetches it.
    """
    from ..maintenance.tables import verify_runs

    async def command() -> TableReport:
        async with viewing_storage(data) as view:
            with output.progress("verifying", None):
                return await verify_runs(view, container)

    report = execute(command)
    print_verdict(report.problems, report.runs, "run", json=json)


def _row(listed: ListedRun) -> tuple[object, ...]:
    run = listed.run
    first, last = run.first_cycle, run.last_cycle
    return (
        listed.container,
        f"{first}" if first == last else f"{first}-{last}",
        run.summary.rows,
        run.summary.tombstones,
        output.show_bytes(run.length),
        "yes" if listed.is_local else "no",
        # All runs of a container lie in one folder, and a narrow terminal has no room for it.
        run.name.rpartition("/")[2],
    )


def _fields(listed: ListedRun) -> dict[str, Any]:
    run, summary = listed.run, listed.run.summary
    return {
        "container": listed.container,
        "run": run.name,
        "first_cycle": run.first_cycle,
        "last_cycle": run.last_cycle,
        "rows": summary.rows,
        "tombstones": summary.tombstones,
        "bytes": run.length,
        "min_version": summary.min_version,
        "max_version": summary.max_version,
        "crc": f"{run.crc:08x}",
        "local": listed.is_local,
    }


def _table_rows(table: TableInfo) -> list[tuple[object, ...]]:
    """Without what is empty."""
    index = table.container
    rows: list[tuple[object, ...]] = [
        (index, output.count(table.segments, "segment"), "", "", "", ""),
        (index, "waiting", "", table.rows, output.show_bytes(table.row_bytes), ""),
    ]
    rows += [
        (
            index,
            f"cycle {_cycles(each)}",
            len(each.runs),
            each.rows,
            output.show_bytes(each.size),
            _missing(each) or "",
        )
        for each in table.generations
    ]
    if table.due_runs:
        rows.append((index, "merge due", table.due_runs, "", output.show_bytes(table.due_bytes), ""))
    return rows


def _cycles(generation: Generation) -> str:
    first, last = generation.cycles
    return f"{first}" if first == last else f"{first}-{last}"


def _missing(generation: Generation) -> int:
    return sum(not each.is_local for each in generation.runs)


def _table_fields(table: TableInfo) -> dict[str, Any]:
    return {
        "container": table.container,
        "segments": table.segments,
        "waiting_rows": table.rows,
        "waiting_bytes": table.row_bytes,
        "due_runs": table.due_runs,
        "due_bytes": table.due_bytes,
        "generations": [
            {
                "first_cycle": each.cycles[0],
                "last_cycle": each.cycles[1],
                "runs": len(each.runs),
                "rows": each.rows,
                "bytes": each.size,
                "missing_copies": _missing(each),
            }
            for each in table.generations
        ],
    }
