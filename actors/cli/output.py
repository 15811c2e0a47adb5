"""What commands put on stdout and stderr: bytes, tables, JSON, progress.

Owns: how things look. Does not own: what is shown. Bytes go straight to the descriptor. Tables have colours
only on a terminal and are never cut. Progress is shown on stderr, and only when that is a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STDIN, STDOUT = 0, 1
BROKEN_PIPE = 141
"""The exit code of a program whose output nobody reads any more, as the shell shows it."""
_UNBOUNDED = 10_000
_TIME_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, in milliseconds since 1970: the calendar of the standard library
ends there."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def write_all(descriptor: int, data: bytes) -> None:
    """All of ``data``. ``BrokenPipeError`` if nobody reads it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def leave() -> NoReturn:
    """Nobody reads stdout any more: end quietly, and let what is left in its buffer go nowhere instead of
    failing again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT)
    os.close(nowhere)
    raise typer.Exit(BROKEN_PIPE)


def console() -> Console:
    """Stdout for tables and reports. A line is never cut or broken here: a terminal that is too narrow does
    that by itself."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            leave()

    return Quiet(highlight=False, markup=False, emoji=False, width=_UNBOUNDED)


def print_json(value: Any) -> None:
    print_lines([json.dumps(value, indent=2, ensure_ascii=False)])


def print_lines(lines: list[str]) -> None:
    try:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()
    except BrokenPipeError:
        leave()


def print_table(headers: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Columns side by side; numbers to the right."""
    console().print(table(headers, rows), crop=False)


def table(headers: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Table:
    """What ``print_table`` prints."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, header in enumerate(headers):
        is_number = bool(rows) and isinstance(rows[0][index], int)
        made.add_column(header, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        made.add_row(*map(str, row))
    return made


def count(number: int, noun: str) -> str:
    """As a sentence has it: ``1 chunk``, ``2 chunks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def show_bytes(size: int) -> str:
    """A size for people: at most three digits and a unit."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def show_time(milliseconds: int) -> str:
    """Wall time for people; a clock that was wrong when it was written must not keep the rest from being
    shown."""
    if milliseconds > _TIME_MAX:
        return f"{milliseconds} ms after 1970"
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@contextmanager
def progress(what: str, total: int | None, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while the body runs: call what it yields with (bytes done, bytes more to do) since the
    last call."""
    if not shown or not sys.stderr.isatty():
        yield lambda done, more: None
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn(what),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        known = total or 0

        def advance(done: int, more: int) -> None:
            nonlocal known
            known += more
            bar.update(task, advance=done, total=known if more else None)

        yield advance
