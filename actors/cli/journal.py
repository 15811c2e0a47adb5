"""Commands about the journals in long-term storage: list, show, verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .options import DEFAULT_DATA, Data, Json
from .running import FAILED, execute, fail, viewing

if TYPE_CHECKING:
    from ...journal.manifest.chain import StoredElement
    from ..maintenance.journal import JournalReport

Container = Annotated[
    int | None,
    typer.Option(
        "--container", min=0, metavar="N", help="Only this container's journal.", show_default=False
    ),
]


def ls(container: Container = None, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """List the elements of each container's journal, the newest first.

    An owner adds one when it opens the container, when a full flush is complete, and before it deletes
    chunks. The newest two are kept.
    """
    report = _read(data, container)
    elements = [(chain.container, each) for chain in report.chains for each in chain.elements]
    if json:
        output.print_json([_fields(index, each) for index, each in elements])
        return

    rows = [
        (
            index,
            each.element.n,
            each.element.kind.name.lower().replace("_", " "),
            each.element.epoch,
            each.element.progress.cycle,
            output.show_time(each.element.time_ms),
            each.element.owner.location or "-",
        )
        for index, each in elements
    ]
    output.print_table(("container", "element", "kind", "epoch", "cycle", "created", "by"), rows)


def show(
    container: Annotated[
        int, typer.Argument(min=0, metavar="CONTAINER", help="The container's number.", show_default=False)
    ],
    element: Annotated[
        int | None,
        typer.Argument(min=1, metavar="[ELEMENT]", help="The element's number.", show_default="the newest"),
    ] = None,
    json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Show an element of a container's journal, with all its fields."""
    (chain,) = _read(data, container).chains
    found = [each for each in chain.elements if element in (None, each.element.n)]
    if not found:
        which = "no element that can be read" if element is None else f"no element {element}"
        fail(f"the journal of container {container} has {which}: see `tierlog journal ls`")

    fields = _fields(container, found[0])
    if json:
        output.print_json(fields)
    else:
        shown = {name: value for name, value in fields.items() if value not in ([], "")}
        output.print_fields({**shown, "created_ms": output.show_time(fields["created_ms"])})


def verify(container: Container = None, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """Read all elements and verify checksums, and that each continues the one before.

    The exit code is 0 if they are sound, 1 if one is damaged or belongs to another history or store. An owner
    uses the newest element that its log knows; `tierlog doctor` compares the two.
    """
    report = _read(data, container)
    if json:
        problems = [output.as_json(problem) for problem in report.problems]
        output.print_json({"sound": report.sound, "elements": _count(report), "problems": problems})
    else:
        lines = [f"{problem.name}: {problem.message}" for problem in report.problems]
        verdict = "sound" if report.sound else output.count(len(lines), "problem")
        output.print_lines([*lines, f"{output.count(_count(report), 'element')}: {verdict}"])
    if not report.sound:
        raise typer.Exit(FAILED)


def _count(report: JournalReport) -> int:
    return sum(len(chain.elements) for chain in report.chains)


def _read(data: Data, container: int | None) -> JournalReport:
    from ..maintenance.journal import read_journals

    async def command() -> JournalReport:
        async with viewing(data) as view:
            return await read_journals(view, container)

    return execute(command)


def _fields(container: int, stored: StoredElement) -> dict[str, Any]:
    from ...journal.manifest.element import StoredRunList

    element = stored.element
    owner, progress, runs = element.owner, element.progress, element.runs
    return {
        "container": container,
        "element": element.n,
        "kind": element.kind.name.lower(),
        "crc": f"{stored.position.crc:08x}",
        "follows": element.predecessor.n,
        "follows_crc": f"{element.predecessor.crc:08x}",
        "epoch": element.epoch,
        "created_ms": element.time_ms,
        "store": owner.store.hex(),
        "log": owner.log.hex(),
        "owner": owner.owner.hex(),
        "folder": owner.folder.hex(),
        "location": owner.location,
        **{name: getattr(progress, name) for name in ("cycle", "cut", "newest_segment")},
        **{name: getattr(progress, name) for name in ("highest_version", "highest_cycle")},
        "runs": [runs.name] if isinstance(runs, StoredRunList) else [run.name for run in runs],
        "pins": [f"{pin.name} {pin.cycle}" for pin in element.pins],
    }
