"""The tree of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer
from typer.core import TyperGroup

from . import (
    backup,
    bookkeeper,
    chunks,
    container,
    folder,
    gc,
    join,
    journal,
    lts,
    migrate,
    recover,
    segment_read,
    segment_write,
    serve,
    status,
    tables,
    transactions,
    transfer,
    user_tables,
    verify,
)
from .backup import BackupGroup
from .join import HostGroup
from .options import LogLevelOption

_HELP = (
    "A tiered segment store: append-only segments, durable in a write-ahead log when an append returns,"
    " moved to cheap chunk storage in the background.\n\n"
    "Start with:\n\n"
    "```\n"
    "tierlog segment create app/events\n"
    "echo hello | tierlog segment append app/events\n"
    "tierlog segment read app/events\n"
    "```\n\n"
    "Commands that read (read, tail, info, ls, show, layout, verify, doctor) change nothing and also work on"
    " a folder that another process has open.\n\n"
    "Commands that write own the folder while they run. They refuse a folder that another process has open,"
    " unless you add --take-over."
)

_READ = "Read (changes nothing)"
_WRITE = "Write (owns the folder meanwhile)"
_SERVICE = "The service"
_TRANSFER = "Import, export, backup, move"

app = typer.Typer(
    name="tierlog",
    help=_HELP,
    epilog="Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage, 130 interrupted.",
    # In rich's own markup `[NAME]` would be a style, and vanish.
    rich_markup_mode="markdown",
    # Typer's tracebacks show local variables, among which may be credentials.
    pretty_exceptions_enable=False,
)


def _group(
    name: str, help: str, panel: str | None = None, kind: type[TyperGroup] = TyperGroup
) -> typer.Typer:
    group = typer.Typer(name=name, cls=kind, help=help, rich_markup_mode="markdown")
    app.add_typer(group, rich_help_panel=panel)
    return group


def _add(group: typer.Typer, panel: str, *commands: Callable[..., None]) -> None:
    for command in commands:
        group.command(rich_help_panel=panel)(command)


# In the order in which --help lists them.
_segment = _group("segment", "Create, append to, read and delete segments.")
_add(_segment, _READ, segment_read.read, segment_read.tail, segment_read.info)
_add(_segment, _READ, segment_read.attributes, segment_read.ls)
_add(_segment, _WRITE, segment_write.create, segment_write.append, segment_write.seal)
_add(_segment, _WRITE, segment_write.truncate, segment_write.merge, segment_write.delete)
_table = _group("table", "Create tables; put, get, remove and list their rows. `tables` verifies all.")
_add(_table, _READ, user_tables.get, user_tables.ls, user_tables.changes)
_add(_table, _WRITE, user_tables.create, user_tables.put, user_tables.remove)
_transactions = _group("txn", "List, show and abort transactions.")
_add(_transactions, _READ, transactions.ls, transactions.show)
_add(_transactions, _WRITE, transactions.abort)
_chunks = _group("chunks", "List, verify and defragment chunks in long-term storage.")
_add(_chunks, _READ, chunks.ls, chunks.layout, chunks.verify)
_add(_chunks, _WRITE, chunks.defrag)
_gc = _group("gc", "Watch, pause and repair garbage collection; sweep long-term storage.")
_add(_gc, _READ, gc.status, gc.ls, gc.failed)
_add(_gc, _SERVICE, gc.retry, gc.purge, gc.pause, gc.resume)
_add(_gc, _WRITE, gc.sweep)
_journal = _group("journal", "List, show and verify the journals in long-term storage.")
_add(_journal, _READ, journal.ls, journal.show, journal.verify)
_lts = _group("lts", "List, read and verify what long-term storage alone has, without logs.")
_add(_lts, _READ, lts.ls, lts.cat, lts.verify)
_tables = _group("tables", "For operators: show and verify system tables. Apps' tables: `table`.")
_add(_tables, _READ, tables.info, tables.ls, tables.verify)

_add(app, _SERVICE, serve.serve, join.supervise, status.status, container.roll)
_containers = _group("container", "Move and reopen a service's containers.", _SERVICE)
_containers.command()(container.move)
_containers.command("open")(container.open_again)
_hosts = _group(
    "host",
    "Join a service as a host; drain and start hosts. `tierlog host --join PLACE` is short for `tierlog host "
    "run --join PLACE`, whose other options `tierlog host run --help` shows.",
    _SERVICE,
    HostGroup,
)
_hosts.callback()(join.host)
_hosts.command()(join.run)
_hosts.command()(container.drain)
_hosts.command()(container.start)

_bookkeeper = _group("bookkeeper", "Install BookKeeper's client.", _SERVICE)
_bookkeeper.command()(bookkeeper.install)

app.command()(folder.init)
app.command()(folder.doctor)
app.command()(verify.verify)
_add(app, _TRANSFER, transfer.export)
app.command("import", rich_help_panel=_TRANSFER)(transfer.import_)
_backups = _group("backup", "Make, list and remove backups: `tierlog backup NAME`.", _TRANSFER, BackupGroup)
for _command in (backup.make, backup.ls, backup.rm):
    _backups.command()(_command)
_add(app, _TRANSFER, backup.restore, recover.recover, migrate.migrate)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"tierlog {version('tierlog')}\n")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        # Eager: before a missing command is an error.
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    log_level: LogLevelOption = None,
) -> None:
    """Typer shows the application's help instead."""
