"""Commands about the journals in long-term storage: list, show, verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .options import DEFAULT_DATA, Data, Json, container_option, whole_number
from .running import FAILED, execute, fail, viewing_storage

if TYPE_CHECKING:
    from ...journal.manifest.chain import ChainProblem, StoredElement
    from ..maintenance.journal import JournalReport

Container = Annotated[int | None, container_option("journal")]


def ls(container: Container = None, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """List the elements of each container's journal, the newest first.

    An owner adds one when it opens the container, when a full flush is complete, and before it deletes
    chunks. The newest two are kept. The exit code is 1 if one is damaged; it is listed with its object.
    """
    report = _read(data, container)
    listed = [(chain.container, each) for chain in report.chains for each in chain.listed]
    damaged = [each for chain in report.chains for each in chain.unreadable]
    if json:
        output.print_json([_listed(index, each) for index, each in listed])
    else:
        rows = [_row(index, each) for index, each in listed]
        headers = ("container", "element", "kind", "epoch", "cycle", "created", "by")
        output.print_table(headers, rows, ("epoch", "cycle", "created"))
        output.print_lines([problem_line(each) for each in damaged])
    if damaged:
        raise typer.Exit(FAILED)


def show(
    container: Annotated[
        int,
        typer.Argument(
            metavar="CONTAINER", parser=whole_number(0), help="The container's number.", show_default=False
        ),
    ],
    element: Annotated[
        int | None,
        typer.Argument(
            metavar="ELEMENT",
            parser=whole_number(1),
            help="The element's number.",
            show_default="the newest",
        ),
    ] = None,
    json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Show an element of a container's journal, with all its fields."""
    (chain,) = _read(data, container).chains
    # Damaged ones count: an older element must not be shown as the newest.
    newest = chain.listed[0].n if chain.listed else 0
    wanted = newest if element is None else element
    for problem in chain.unreadable:
        if problem.n == wanted:
            fail(
                f"{problem_line(problem)}; `tierlog doctor` lists what to do, `tierlog journal ls` the others"
            )

    found = [each for each in chain.elements if each.element.n == wanted]
    if not found:
        which = "no element" if element is None else f"no element {element}"
        fail(f"the journal of container {container} has {which}: see `tierlog journal ls`")

    fields = _fields(container, found[0])
    if json:
        output.print_json(fields)
    else:
        # JSON keeps empty fields, so that scripts find every key.
        shown = {name: value for name, value in fields.items() if value not in ([], "")}
        created = output.show_time(shown.pop("created_ms"))
        output.print_fields({**shown, "kind": _shown_kind(found[0]), "created": created})


def verify(container: Container = None, json: Json = False, data: Data = DEFAULT_DATA) -> None:
    """Verify all elements: checksums, that each continues the one before, and that the logs know the newest.

    The exit code is 0 if they are sound, 1 if one is damaged, missing, or of another history or store;
    `tierlog doctor` lists what to do.
    """
    report = _read(data, container, verify=True)
    print_verdict(report.problems, _count(report), "element", json=json)


def print_verdict(problems: Sequence[ChainProblem], count: int, noun: str, *, json: bool) -> None:
    """What is wrong with ``count`` objects, in the command's exit code too."""
    if json:
        listed = [_problem(problem) for problem in problems]
        output.print_json({"sound": not problems, f"{noun}s": count, "problems": listed})
    else:
        lines = [problem_line(problem) for problem in problems]
        verdict = output.count(len(lines), "problem") if lines else "sound"
        output.print_lines([*lines, f"{output.count(count, noun)}: {verdict}"])
    if problems:
        raise typer.Exit(FAILED)


def _count(report: JournalReport) -> int:
    return sum(len(chain.elements) + len(chain.unreadable) for chain in report.chains)


def problem_line(problem: ChainProblem) -> str:
    return f"{problem.name}, offset {problem.offset}: {problem.message}"


def _row(container: int, listed: StoredElement | ChainProblem) -> tuple[object, ...]:
    from ...journal.manifest.chain import ChainProblem

    if isinstance(listed, ChainProblem):
        return (container, listed.n, "damaged", "-", "-", "-", "-")

    element = listed.element
    return (
        container,
        element.n,
        _shown_kind(listed),
        element.epoch,
        element.progress.cycle,
        output.show_time(element.time_ms),
        element.owner.location or "-",
    )


def _shown_kind(stored: StoredElement) -> str:
    return stored.element.kind.name.lower().replace("_", " ")


def _listed(container: int, listed: StoredElement | ChainProblem) -> dict[str, Any]:
    from ...journal.manifest.chain import ChainProblem

    if isinstance(listed, ChainProblem):
        return {"container": container, "element": listed.n, "kind": "damaged", **_problem(listed)}

    return _fields(container, listed)


def _problem(problem: ChainProblem) -> dict[str, Any]:
    return {"name": problem.name, "offset": problem.offset, "message": problem.message}


def _read(data: Data, container: int | None, *, verify: bool = False) -> JournalReport:
    from ..maintenance.journal import read_journals, verify_journals

    async def command() -> JournalReport:
        async with viewing_storage(data) as view:
            return await (verify_journals if verify else read_journals)(view, container)

    return execute(command)


def _fields(container: int, stored: StoredElement) -> dict[str, Any]:
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
        # Names only: `tierlog tables ls` has the rest, and there may be hundreds.
        "runs": [run.name for run in runs],
        "pins": [f"{pin.name} {pin.cycle}" for pin in element.pins],
    }
