"""The command that compares a store with its long-term storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .journal import problem_line
from .options import DEFAULT_DATA, Data, Json
from .running import FAILED, execute, viewing

if TYPE_CHECKING:
    from ..maintenance.verify import StoreVerification


def verify(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all chunks, runs and journals, and verify their checksums.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Verify that long-term storage has all that a store refers to, and list what else it has.

    Every element, sorted run and chunk must be there with its length, and each chunk must belong to one
    segment. What nothing refers to is no problem: a crash left it, or it is newer than what was read of the
    log; its owner deletes it. The exit code is 1 if anything is missing, damaged or refers to the wrong
    thing.
    """

    async def command() -> StoreVerification:
        from ..maintenance.verify import verify_store

        async with viewing(data) as view:
            with output.progress("verifying", None) as advance:
                return await verify_store(view, deep=deep, progress=advance)

    found = execute(command)
    if json:
        output.print_json(_fields(found))
    else:
        _show(found, deep=deep)
    if not found.sound:
        raise typer.Exit(FAILED)


def _show(found: StoreVerification, *, deep: bool) -> None:
    chunks = found.chunks
    problems = [problem_line(problem) for problem in found.problems]
    problems += [
        f"{each.chunk}, offset {each.offset}: {each.message}{f' ({each.segment})' if each.segment else ''}"
        for each in chunks.problems
    ]
    lines = [f"unreferenced: {each.name}, {output.show_bytes(each.length)}" for each in found.unreferenced]
    lines.append(
        f"{output.count(found.elements, 'element')}, {output.count(found.runs, 'run')}, "
        f"{output.count(chunks.chunks, 'chunk')} with {output.show_bytes(chunks.bytes)}, "
        f"{len(found.unreferenced)} unreferenced"
    )
    verdict = f"not sound, problems: {len(problems)}" if problems else "sound"
    lines.append(verdict if deep else f"{verdict}; what is in chunks and runs was not read (--deep)")
    output.print_lines([*problems, *lines])


def _fields(found: StoreVerification) -> dict[str, Any]:
    return {
        "sound": found.sound,
        "elements": found.elements,
        "runs": found.runs,
        "problems": [output.as_json(problem) for problem in found.problems],
        "chunks": output.as_json(found.chunks),
        "unreferenced": [{"name": each.name, "length": each.length} for each in found.unreferenced],
    }
