"""Commands about a whole data folder: the configuration file and the doctor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...storage_backends.base.errors import DataCorruption
from . import output
from .options import DEFAULT_DATA, Data, Json
from .running import FAILED, Hints, execute, fail, viewing

if TYPE_CHECKING:
    from rich.console import Console

    from ..maintenance.doctor import ContainerReport, Problem, StoreReport

_CONFIG_NAME = "tierlog.toml"
_UNREAD = "; chunks and runs not read (--deep)"  # with a count of problems it fits a narrow terminal


def init(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            readable=False,
            help="The file to write, or a folder for a tierlog.toml.",
            show_default=False,
        ),
    ] = Path(_CONFIG_NAME),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: Json = False,
) -> None:
    """Write a commented tierlog.toml with every setting and its default, for --config."""
    from ...storage_backends.base import modes
    from ...storage_backends.base.files import NOT_A_FILE
    from ...storage_backends.base.os_errors import reason_of
    from ...storage_backends.files.nofollow import open_file
    from ..settings.configuration import StoreConfig
    from ..settings.configuration_file import render_config

    def opener(path: str, flags: int) -> int:
        # The user may keep the file elsewhere, behind a link.
        return open_file(os.path.realpath(path) if force else path, flags, modes.FILE)

    file = path / _CONFIG_NAME if path.is_dir() else path
    is_ours = False
    try:
        # "x" refuses an existing file in the same call that creates it: a check before could be overtaken.
        with open(file, "w" if force else "x", encoding="utf-8", opener=opener) as stream:
            is_ours = not force
            stream.write(render_config(StoreConfig()))
    except FileExistsError:
        fail(f"{file} already exists: name another file, or overwrite it with --force")
    except OSError as error:
        if is_ours:
            # A part of a file would be refused as an existing one when the command is repeated.
            file.unlink(missing_ok=True)
        reason = "not a regular file" if error.errno in NOT_A_FILE else reason_of(error)
        fail(f"{file} cannot be written: {reason}")
    if json:
        output.print_json({"file": os.fspath(file)})
    else:
        output.print_lines([f"wrote {file}"])


def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Verify the checksums of all chunks, sorted runs and journals.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
) -> None:
    """Show what is in a data folder, whether it is sound, and which processes have it open.

    The exit code is 0 if everything is sound, else 1. Each problem is listed with its file, its offset and
    what to do.
    """
    from ...storage_backends.files.local import LocalFiles
    from ..maintenance.doctor import RESTORE_FILE, examine

    # The view itself raises it, before there is a report; the usual hint would name this very command.
    hints: Hints = {DataCorruption: f"nothing can be examined without this file: {RESTORE_FILE}"}

    async def command() -> StoreReport:
        async with viewing(data) as view:
            # A listing of very many chunks takes seconds too.
            with output.progress("verifying", None) as advance:
                return await examine(view, LocalFiles(), deep=deep, progress=advance)

    report = execute(command, hints=hints)
    if json:
        output.print_json({"sound": report.sound, **output.as_json(report)})
    else:
        _show(report)
    if not report.sound:
        raise typer.Exit(FAILED)


def _show(report: StoreReport) -> None:
    screen = output.console()
    made = output.show_time(report.created_ms)
    output.print_fields({"store": report.store_id, "folder": report.folder, "made": made})
    screen.print()
    for owner in report.owners:
        role = f"open as {owner.role} in" if owner.role else "open in"
        how = f"served at {owner.url} by" if owner.url else role
        screen.print(f"{how} process {owner.pid} on {owner.host} since {output.show_time(owner.since_ms)}")
    if not report.owners:
        screen.print("not open anywhere")
    screen.print()
    _show_containers(screen, report.containers)
    screen.print()
    _show_sums(screen, report)
    for backup in report.backups:
        if not backup.problem:
            screen.print(f"backup {backup.name} of {output.show_time(backup.created_ms)}")
    for container in report.containers:
        if container.unconfirmed:
            screen.print(
                f"container {container.index} deletes no chunks: {container.unconfirmed}; `tierlog gc sweep "
                f"--confirm` allows it",
                style="yellow",
                soft_wrap=True,
            )
    for problem in report.problems:
        _show_problem(screen, problem)
    found = "sound" if report.sound else f"not sound, problems: {len(report.problems)}"
    screen.print(f"{found}{'' if report.deep else _UNREAD}", style="green" if report.sound else "red")


_LOG_COLUMNS = {
    "container": "index",
    "epoch": "epoch",
    "log files": "log_files",
    "log bytes": "log_bytes",
    "on disk": "log_allocated_bytes",
    "groups": "groups",
    "element": "element",
}
_DATA_COLUMNS = {
    "container": "index",
    "segments": "segments",
    "bytes": "bytes",
    "unflushed": "unflushed_bytes",
    "chunks": "chunks_referenced",
    "on storage": "chunks_on_storage",
    "unreferenced": "chunks_unreferenced",
    "missing": "chunks_missing",
}


def _show_containers(screen: Console, containers: tuple[ContainerReport, ...]) -> None:
    """Two tables, so that each fits a narrow terminal."""
    logs = [tuple(getattr(each, field) for field in _LOG_COLUMNS.values()) for each in containers]
    output.print_table(tuple(_LOG_COLUMNS), logs, ("groups", "log files"))
    screen.print()
    data = [tuple(getattr(each, field) for field in _DATA_COLUMNS.values()) for each in containers]
    output.print_table(tuple(_DATA_COLUMNS), data, ("on storage", "unflushed"))


def _show_sums(screen: Console, report: StoreReport) -> None:
    segments = sum(each.segments for each in report.containers)
    held = output.show_bytes(sum(each.bytes for each in report.containers))
    unflushed = output.show_bytes(sum(each.unflushed_bytes for each in report.containers))
    screen.print(f"{output.count(segments, 'segment')} with {held}, {unflushed} of it unflushed")
    if report.cached_chunks:
        cached = output.show_bytes(report.cached_bytes)
        screen.print(f"{output.count(report.cached_chunks, 'chunk')} in the local cache, {cached} of disk")


def _show_problem(screen: Console, problem: Problem) -> None:
    # An object in a bucket has no path.
    file = os.path.relpath(problem.file) if problem.file.startswith("/") else problem.file
    where = f"{file}, offset {problem.offset}: " if file else ""
    # The terminal wraps it, not rich, which would break paths with line ends of its own.
    screen.print(f"problem: {where}{problem.message}", style="red", soft_wrap=True)
    if problem.advice:
        screen.print(f"  what to do: {problem.advice}", soft_wrap=True)
