"""Commands about the system tables: list and verify their sorted runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from . import output
from .journal import print_verdict
from .options import DEFAULT_DATA, Data, Json, container_option
from .running import execute, viewing

if TYPE_CHECKING:
    from ..maintenance.tables import ListedRun, TableReport

Container = Annotated[int | None, container_option("table")]


def ls(container: Container = None, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """List the sorted runs of each container's system table, the newest first.

    They hold the records of segments and chunks that full flushes have published; newer records are in the
    write-ahead log. Local copies are in the folder `runs` beside the log.
    """
    from ..maintenance.tables import list_runs

    async def command() -> list[ListedRun]:
        async with viewing(data) as view:
            return await list_runs(view, container)

    listed = execute(command)
    if json:
        output.print_json([_fields(each) for each in listed])
    else:
        headers = ("container", "cycles", "rows", "tombstones", "size", "local", "run")
        output.print_table(headers, [_row(each) for each in listed], ("tombstones",))


def verify(container: Container = None, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """Read all sorted runs and their local copies, and verify every checksum.

    The exit code is 0 if they are sound, 1 if a run is missing or damaged, or a local copy is damaged. A
    missing local copy is no problem: an owner fetches it.
    """
    from ..maintenance.tables import verify_runs

    async def command() -> TableReport:
        async with viewing(data) as view:
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
