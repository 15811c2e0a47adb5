"""What commands write to stdout and stderr: bytes, tables, JSON and progress.

Tables have colours on a terminal only. Progress is shown on stderr if that is a terminal. Control characters
in names, reasons and other text are escaped, because others choose that text and a terminal executes them;
and so is what the encoding of stdout lacks. A stdout that takes no more ends the command with exit code 1, or
with 141 if its reader is gone.
"""

from __future__ import annotations

import codecs
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from enum import Enum
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from msgspec import Struct

from ..telemetry.printable import printable, printable_json
from ..telemetry.utc import show_utc

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

STDIN, STDOUT, STDERR = 0, 1, 2
BROKEN_PIPE = 141
"""The exit code of a program that a closed pipe ends, as shells report it."""
_UNBOUNDED = 10_000
_TEXT_WIDTH_MIN = 16
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def write_all(descriptor: int, data: bytes, name: str = "stdout") -> None:
    """Write all of ``data``. Raises ``BrokenPipeError`` if the reader is gone, ``OSError`` with ``name`` if
    the bytes cannot be written."""
    # `os.write`, because what waits in the buffer of `sys.stdout` is lost when Ctrl-C ends the process with
    # `os._exit`. A pipe or a full disk may take only a part.
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        # The number decides the subclass, so that a closed pipe stays `BrokenPipeError`.
        raise OSError(error.errno, error.strerror, name) from error


def exit_broken_pipe() -> NoReturn:
    """Exit quietly after the reader of stdout is gone."""
    discard_stdout()
    raise typer.Exit(BROKEN_PIPE)


def discard_stdout() -> None:
    """Send what stdout still holds to the null device, because writing it would fail again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, STDOUT)
    os.close(null)


def reserve_standard_streams() -> None:
    """Open a closed stdin, stdout or stderr, so that no file of a store gets its number. Reading or writing
    it fails, except that errors of a closed stderr are dropped. Stdout escapes what its encoding lacks, as
    stderr does."""
    for descriptor, flags in ((STDIN, os.O_WRONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number
    sys.stdout = sys.stdout or os.fdopen(STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def console(*, width: int = _UNBOUNDED) -> Console:
    """Stdout for tables and reports. By default lines are never cut or broken: a narrow terminal wraps them
    itself."""
    from rich.console import Console

    class Quiet(Console):
        # Rich's own ends the process with exit code 1.
        def on_broken_pipe(self) -> None:
            exit_broken_pipe()

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

    # A segment may be called `[red]` or `:cat:`: names are no markup.
    return Quiet(highlight=False, markup=False, emoji=False, width=width)


def print_json(value: Any) -> None:
    _write(f"{_json(value)}\n")


@contextmanager
def json_list() -> Iterator[Callable[[Iterable[Any]], None]]:
    """Prints a list of any length: the yielded function prints its next items. If the body raises, the list
    has no end."""
    count = 0

    def add(items: Iterable[Any]) -> None:
        nonlocal count
        parts = []
        for item in items:
            # No text in JSON has a line break.
            indented = _json(item).replace("\n", "\n  ")
            parts.append(f"{',' if count else '['}\n  {indented}")
            count += 1
        _write("".join(parts))

    yield add
    _write("\n]\n" if count else "[]\n")


def _json(value: Any) -> str:
    # In other encodings stdout would escape in another way than JSON does.
    is_unicode = codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"
    return printable_json(json.dumps(value, indent=2, ensure_ascii=not is_unicode))


def print_lines(lines: list[str]) -> None:
    _write("".join(f"{printable(line)}\n" for line in lines))


def print_note(text: str) -> None:
    """On stderr, so that stdout has results only."""
    sys.stderr.write(f"{printable(text)}\n")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        exit_broken_pipe()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from error


def print_fields(fields: Mapping[str, object]) -> None:
    """One field per line: name and value side by side. A list has a line for each item."""
    width = max(map(len, fields))
    print_lines(
        [
            f"{name.replace('_', ' '):<{width}}  {item}"
            for name, value in fields.items()
            for item in (value if isinstance(value, list) else [value])
        ]
    )


def as_json(value: Any) -> Any:
    """A record, of msgspec or attrs, as JSON: bytes in hexadecimal, enums by their values."""
    import attrs

    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | AbstractSet):
        return [as_json(item) for item in value]
    if isinstance(value, Struct):
        return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
    if attrs.has(type(value)):
        return {field.name: as_json(getattr(value, field.name)) for field in attrs.fields(type(value))}
    return value


_FITTED_MAX = 1_000
"""Rows of a table that is fitted to the terminal."""


Row = tuple[Any, ...]


def print_table(headers: tuple[str, ...], rows: list[Row], least_important: tuple[str, ...] = ()) -> None:
    """Columns side by side, numbers aligned to the right, as wide as a terminal (``fitted``)."""
    with table(headers, least_important) as add:
        add(rows)


@contextmanager
def table(
    headers: tuple[str, ...], least_important: tuple[str, ...] = ()
) -> Iterator[Callable[[Iterable[Row]], None]]:
    """Prints a table of any length: the yielded function takes its next rows. As ``print_table`` if they are
    few. Others are not fitted to the terminal and printed as they come, in columns that become wider where
    they must. If the body raises, the rows so far are printed."""
    held: list[Row] = []
    columns: _Columns | None = None

    def add(rows: Iterable[Row]) -> None:
        nonlocal columns
        held.extend(rows)
        if columns is None and len(held) > _FITTED_MAX:
            columns = _Columns()
            held.insert(0, headers)
        if columns is not None and held:
            print_lines(list(columns.lines(held)))
            held.clear()

    failed = True
    try:
        yield add
        failed = False
    finally:
        width = terminal_width()
        if columns is None and (held or not failed):
            if width == _UNBOUNDED:
                print_lines(list(_Columns().lines([headers, *held])))
            else:
                # Not cropped: a terminal wraps what is still too wide, and nothing is lost.
                console(width=width).print(fitted(headers, held, width, least_important), crop=False)


class _Columns:
    """Columns that need not fit: to fit 20,000 rows takes 7 s."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._is_number: list[bool] = []

    def lines(self, rows: list[Row]) -> Iterator[str]:
        """The lines of the next rows; the first of all are the headers."""
        from rich.cells import cell_len

        if not self._sizes:
            self._sizes = [0] * len(rows[0])
            self._is_number = [isinstance(value, int) for value in rows[min(1, len(rows) - 1)]]
        texts = [[printable(str(value)) for value in row] for row in rows]
        self._sizes = [
            max(size, *map(cell_len, column)) for size, *column in zip(self._sizes, *texts, strict=True)
        ]
        for row in texts:
            cells = []
            for text, size, is_right in zip(row, self._sizes, self._is_number, strict=True):
                space = " " * (size - cell_len(text))
                cells.append(space + text if is_right else text + space)
            yield "  ".join(cells).rstrip()


def fitted(
    headers: tuple[str, ...],
    rows: list[tuple[Any, ...]],
    width: int,
    least_important: tuple[str, ...] = (),
) -> Table:
    """A table that fits into ``width``: without those of the columns ``least_important``, in this order, for
    which there is no room. The last column, a text, is wrapped; the other texts too if that is not enough."""
    # Terminals show some characters, Chinese ones for example, in two columns.
    from rich.cells import cell_len

    def total() -> int:
        return sum(sizes[index] for index in kept) + min(_TEXT_WIDTH_MIN, sizes[text])

    *kept, text = range(len(headers))
    sizes = [
        max(cell_len(printable(str(row[index]))) for row in (headers, *rows)) + 2 for index in (*kept, text)
    ]
    for name in least_important:
        if name in headers and total() > width:
            kept.remove(headers.index(name))
    wrapped = [text] if total() <= width else [*kept, text]
    return _table(headers, rows, [*kept, text], wrapped)


def _table(
    headers: tuple[str, ...], rows: list[tuple[Any, ...]], columns: list[int], wrapped: list[int]
) -> Table:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index in columns:
        # Columns are of one type, so the first row decides.
        is_number = bool(rows) and isinstance(rows[0][index], int)
        # A number in two lines reads as two numbers.
        is_wrapped = index in wrapped and not is_number
        made.add_column(
            headers[index],
            justify="right" if is_number else "left",
            no_wrap=not is_wrapped,
            overflow="fold" if is_wrapped else "ellipsis",
        )
    for row in rows:
        made.add_row(*(str(row[index]) for index in columns))
    return made


def terminal_width() -> int:
    """The columns of the terminal that stdout is, without bound for a file or a pipe."""
    # Some shells export COLUMNS, which must not cut what goes to a file.
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNBOUNDED


def count(number: int, noun: str) -> str:
    """``1 chunk``, ``2 chunks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def show_bytes(size: int) -> str:
    """A size for people: at most three digits and a unit."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def show_time(milliseconds: int) -> str:
    """Wall time for people."""
    return show_utc(milliseconds / 1000, "%Y-%m-%d %H:%M:%S UTC")


@contextmanager
def progress(what: str, total: int | None, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr while the body runs. Call the yielded function with (bytes done, bytes found
    to do) since the last call."""
    # Logs of scripts should not fill with bars.
    if not shown or not sys.stderr.isatty():
        yield lambda done, found: None
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
    # Transient: after the command stderr shows its errors only.
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        known = total or 0

        def advance(done: int, found: int) -> None:
            nonlocal known
            known += found
            # None leaves the total as it is.
            bar.update(task, advance=done, total=known if found else None)

        yield advance
