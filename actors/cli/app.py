"""The tree of commands, and what stands at its top.

Owns: which commands exist under which name, and ``--version``.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from . import chunks, container, folder, segment_read, segment_write, serve, status, transactions, transfer

_HELP = """A tiered segment store: append-only segments, durable in a write-ahead log when acked, moved to cheap chunks in the background.

Start with `tierlog segment create app/events`, `echo hello | tierlog segment append app/events`, `tierlog segment read app/events`.

Commands that read (read, tail, info, ls, show, doctor) change nothing and can be used on a folder that another process has open.
Commands that write own the folder while they run, and refuse one that is open elsewhere unless told to --take-over."""

app = typer.Typer(
    name="tierlog",
    help=_HELP,
    epilog="Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage, 130 interrupted.",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
segment = typer.Typer(
    name="segment", help="Make, fill, read and remove segments of a data folder.", rich_markup_mode="markdown"
)
app.add_typer(segment)

_READING = "Reading: changes nothing, fences nobody"
segment.command("read", rich_help_panel=_READING)(segment_read.read)
segment.command("tail", rich_help_panel=_READING)(segment_read.tail)
segment.command("info", rich_help_panel=_READING)(segment_read.info)
segment.command("ls", rich_help_panel=_READING)(segment_read.ls)
_WRITING = "Writing: owns the folder meanwhile"
segment.command("create", rich_help_panel=_WRITING)(segment_write.create)
segment.command("append", rich_help_panel=_WRITING)(segment_write.append)
segment.command("seal", rich_help_panel=_WRITING)(segment_write.seal)
segment.command("truncate", rich_help_panel=_WRITING)(segment_write.truncate)
segment.command("merge", rich_help_panel=_WRITING)(segment_write.merge)
segment.command("delete", rich_help_panel=_WRITING)(segment_write.delete)
transaction = typer.Typer(
    name="txn", help="See and abort the transactions of a data folder.", rich_markup_mode="markdown"
)
transaction.command("ls", rich_help_panel=_READING)(transactions.ls)
transaction.command("show", rich_help_panel=_READING)(transactions.show)
transaction.command("abort", rich_help_panel=_WRITING)(transactions.abort)
app.add_typer(transaction)
chunk = typer.Typer(
    name="chunks",
    help="See what lies in long-term storage, and whether it is whole.",
    rich_markup_mode="markdown",
)
chunk.command("ls", rich_help_panel=_READING)(chunks.ls)
chunk.command("layout", rich_help_panel=_READING)(chunks.layout)
chunk.command("verify", rich_help_panel=_READING)(chunks.verify)
chunk.command("defrag", rich_help_panel=_WRITING)(chunks.defrag)
app.add_typer(chunk)
_SERVICE = "The service"
app.command("serve", rich_help_panel=_SERVICE)(serve.serve)
app.command("status", rich_help_panel=_SERVICE)(status.status)
app.command("roll", rich_help_panel=_SERVICE)(container.roll)
containers = typer.Typer(
    name="container", help="Say where a service's containers are.", rich_markup_mode="markdown"
)
containers.command("move")(container.move)
containers.command("open")(container.open_again)
app.add_typer(containers, rich_help_panel=_SERVICE)
hosts = typer.Typer(name="host", help="Restart a service's hosts.", rich_markup_mode="markdown")
hosts.command("drain")(container.drain)
hosts.command("start")(container.start)
app.add_typer(hosts, rich_help_panel=_SERVICE)
app.command("init")(folder.init)
app.command("doctor")(folder.doctor)
_MOVING = "Moving: into a store and out of it"
app.command("export", rich_help_panel=_MOVING)(transfer.export)
app.command("import", rich_help_panel=_MOVING)(transfer.import_)
app.command("backup", rich_help_panel=_MOVING)(transfer.backup)
app.command("restore", rich_help_panel=_MOVING)(transfer.restore)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"tierlog {version('tierlog')}\n")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Replaced by the application's help above."""
