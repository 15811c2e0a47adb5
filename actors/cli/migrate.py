"""The command that moves a store to another place."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...storage_backends.base.errors import DataCorruption, OutcomeUnknown, StorageFull, Unavailable
from . import output
from .options import Config, Json, store_place
from .running import RUN_AGAIN, Hints, execute, fail, read_settings, show_lease_wait

if TYPE_CHECKING:
    from ...journal.coordination.contract import Coordination
    from ..folder.identity import StoreIdentity
    from ..maintenance.migration import Migration
    from ..maintenance.migration_places import MigrationPlace

_HINTS: Hints = {
    Unavailable: RUN_AGAIN,
    OutcomeUnknown: RUN_AGAIN,
    StorageFull: RUN_AGAIN,
    DataCorruption: "`tierlog doctor --deep` and `tierlog lts verify` list all damage of the old place",
}
_PLACE = "A data folder, s3://BUCKET/PREFIX or bookkeeper://ZOOKEEPER:PORT/PATH."


def migrate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PLACE", parser=store_place, help=f"Where the store is. {_PLACE}", show_default=False
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            parser=store_place,
            help="Where it is to be: new or empty.",
            show_default=False,
        ),
    ] = None,
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Complete the move, without a question."),
    ] = False,
    chunks: Annotated[
        str,
        typer.Option(
            "--chunks",
            metavar="LOCATION",
            help="Where the chunks will be; `keep` leaves them where they are. Default: where a store in the "
            "new place has its own.",
            show_default=False,
        ),
    ] = "",
    undo: Annotated[
        bool, typer.Option("--undo", help="Give up a move that was not completed: the old place opens again.")
    ] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Move a store: from a data folder to a bucket or to BookKeeper, back, or to another place of the kind.

    It is prepared first: everything is flushed and copied, and each copy verified. The old place can be
    opened again meanwhile, and nothing in it is removed. Then, after a question or with --confirm, what is
    new is copied, and the store is in the new place: the old one cannot be opened any more. Run the same
    command again after an interruption.
    """
    if undo == (to is not None) or (undo and (confirm or chunks)):
        raise typer.BadParameter("name the new place with --to, or give --undo alone")
    if to is None:
        if not execute(lambda: _undo(source, config), hints=_HINTS, interrupted=RUN_AGAIN):
            fail(f"no move of the store in {source} was begun, or it is given up already: nothing to undo")
        if json:
            output.print_json({"source": source, "is_undone": True})
        else:
            output.print_lines(_described_undo(source))
        return

    done = _run(source, to, config, chunks, confirms=confirm)
    if not done.is_complete and not json:
        _show(done)
        # A script prepares the move and confirms it later.
        question = f"Is the store in {to} from now on, and no longer in {source}?"
        if sys.stdin.isatty() and typer.confirm(question, err=True):
            done = _run(source, to, config, chunks, confirms=True)
    if json:
        output.print_json(output.as_json(done))
    elif done.is_complete:
        _show(done)


def _run(source: str, to: str, config: Path | None, chunks: str, *, confirms: bool) -> Migration:
    async def command() -> Migration:
        from ..maintenance.migration import migrate
        from ..store.folder_opening import system_world

        old, new = _place(source, config), _place(to, config)
        with output.progress("copying", None) as advance:
            return await migrate(old, new, system_world(), confirms=confirms, chunks=chunks, progress=advance)

    return execute(command, hints=_HINTS, interrupted=RUN_AGAIN)


async def _undo(source: str, config: Path | None) -> bool:
    from ..maintenance.migration import undo

    return await undo(_place(source, config))


def _described_undo(source: str) -> list[str]:
    return [
        f"the store in {source} can be opened again",
        "delete what the move has copied to the place that --to named, or --chunks: it belongs to no store",
    ]


def _place(path: str, config: Path | None) -> MigrationPlace:
    from ...storage_backends.files.local import LocalFiles
    from ..maintenance.migration_places import make_place
    from ..store.folder_opening import system_world
    from ..supervisor.term import nobody_serves

    settings, world = read_settings(config, None), system_world()

    def only(coordination: Coordination, identity: StoreIdentity) -> AbstractAsyncContextManager[None]:
        lease = settings.server.lease
        return nobody_serves(coordination, identity, world.id_bytes(), lease, show_lease_wait)

    return make_place(path, settings, LocalFiles(), world, only)


def _show(done: Migration) -> None:
    copied = output.count(done.copied_objects, "object")
    size = output.show_bytes(done.copied_bytes)
    what = f"copied and verified {copied} with {size}"
    if done.keeps_chunks:
        what = f"the chunks stay in {done.chunks}"
    if not done.is_complete:
        output.print_lines(
            [
                f"prepared: {what}",
                f"the store stays in {done.source} until you run the same command with --confirm",
            ]
        )
        return

    again = f"`tierlog lts verify {done.chunks}` reads all of it again: do that before you delete anything"
    output.print_lines(
        [
            what,
            f"the store is in {done.target} now; in {done.source} it cannot be opened any more",
            *([] if done.keeps_chunks else [again]),
            f"once you have seen it there, delete the old place: {', '.join(done.left)}",
        ]
    )
