"""The tree of commands, and what stands at its top.

Owns: which commands exist under which name, and ``--version``.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from . import changing, folder, reading

app = typer.Typer(
    name="tierlog",
    help="""A tiered segment store: append-only segments, durable in a write-ahead log when acked, moved to cheap chunks in the background.

    Start with [bold]tierlog segment create app/events[/], then [bold]echo hello | tierlog segment append app/events[/] and
    [bold]tierlog segment read app/events[/].
    Commands that read (read, tail, info, ls, doctor) can be used on a folder that another process has open; they change nothing.
    Commands that write open the store as its owner and refuse a folder that is open elsewhere, unless told to --take-over.""",
    epilog="Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage, 130 interrupted.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
segment = typer.Typer(name="segment", help="Make, fill, read and remove segments of a data folder.")
app.add_typer(segment)

segment.command("create")(changing.create)
segment.command("append")(changing.append)
segment.command("read")(reading.read)
segment.command("tail")(reading.tail)
segment.command("info")(reading.info)
segment.command("ls")(reading.ls)
segment.command("seal")(changing.seal)
segment.command("truncate")(changing.truncate)
segment.command("merge")(changing.merge)
segment.command("delete")(changing.delete)
app.command("init")(folder.init)
app.command("doctor")(folder.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"tierlog {version('tierlog')}\n")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Replaced by the application's help above."""
