"""Commands for backups: make, list, remove, copy and restore them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ...storage_backends.base.errors import DataCorruption, NotOwner, OutcomeUnknown, Unavailable
from . import output
from .agreement import check_agreed
from .interrupts import end_at_once
from .options import DEFAULT_DATA, Chunks, Config, Data, Json, Service, TakeOver
from .recover import show_containers
from .running import FAILED, RUN_AGAIN, Hints, execute, read_settings, writing

if TYPE_CHECKING:
    from ...storage_backends.base.backups import Backup
    from ...storage_backends.base.chunk_storage import ChunkStorage
    from ..folder.paths import StoreFolder
    from ..maintenance.backup_copy import CopiedBackup
    from ..maintenance.restore import RestoreReport
    from ..settings.configuration import StoreConfig
    from ..store.recover import RecoveredStore

_HINTS: Hints = {DataCorruption: "`tierlog backup ls` shows which backups can be restored"}
Place = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="What `backup --copy-to` has written: a folder, or s3://BUCKET/PREFIX; default: the store's own "
        "long-term storage.",
    ),
]


class BackupGroup(TyperGroup):
    """``backup NAME`` is short for ``backup make NAME``."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["make", *args]
        return super().make_context(info_name, args, parent, **extra)


BackupName = Annotated[
    str, typer.Argument(metavar="NAME", help="The backup's name, such as monday.", show_default=False)
]


def make(
    name: BackupName,
    copy_to: Annotated[
        str | None,
        typer.Option(
            "--copy-to",
            metavar="PLACE",
            help="Copy what the backup needs to this folder, or to s3://BUCKET/PREFIX; if there is such a "
            "backup already, only copy.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="With --copy-to: read all that the backup has there, also what earlier calls verified, and "
            "copy again what is damaged.",
        ),
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Make a backup of the whole store: long-term storage keeps what it needs until it is removed.

    Flushes first, and copies nothing, so it takes no longer than a flush. Tables, attributes, writers and
    transactions are included. `tierlog backup NAME` is short for this command.
    """
    if verify and copy_to is None:
        raise typer.BadParameter("--verify reads a copy: name its place with --copy-to")

    async def command() -> CopiedBackup | None:
        if copy_to is None:
            async with writing(data, config, take_over=take_over, url=url) as store:
                await store.backup(name)
            return None

        # Whatever is wrong with the place is noticed before there is a backup.
        await _check_place(data, config, copy_to)
        if not await _can_copy(data, config, name, copy_to, verify=verify):
            async with writing(data, config, take_over=take_over, url=url) as store:
                await store.backup(name)
        with output.progress("copying", None) as advance:
            return await _copy_to(data, config, name, copy_to, advance, verify=verify)

    if copy_to is None:
        copied = execute(command, hints=_HINTS)
    else:
        again: Hints = {Unavailable: RUN_AGAIN, OutcomeUnknown: RUN_AGAIN}
        copied = execute(command, hints={**_HINTS, **again}, interrupted=RUN_AGAIN)
    if json:
        output.print_json({"name": name} if copied is None else {"name": name, **output.as_json(copied)})
    elif copied is None:
        output.print_lines([f"backup {name}: complete"])
    else:
        there = copied.objects - copied.copied_objects
        new = output.count(copied.copied_objects, "object")
        size = output.show_bytes(copied.copied_bytes)
        lines = [f"backup {name}: copied {new} with {size}, {there} were there"]
        if copied.unread_objects:
            was = "was" if copied.unread_objects == 1 else "were"
            lines.append(
                f"{copied.unread_objects} of them {was} verified by an earlier copy and not read again: only "
                f"--verify finds what was damaged there since"
            )
        output.print_lines(lines)


def ls(
    place: Place = None,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    url: Service = None,
) -> None:
    """List the backups.

    A backup with a problem cannot be restored, and says why. Without wal/, long-term storage is looked at as
    `tierlog restore` finds it.
    """

    async def command() -> list[Backup]:
        end_at_once()
        if url is not None:
            async with writing(data, config, take_over=False, url=url) as store:
                return await store.backups()
        if place is not None:
            from .copy_place import opened_place

            async with opened_place(place, config) as chunks:
                return await _list(chunks, is_copy=True)
        async with _own_storage(data, config) as chunks:
            return await _list(chunks, is_copy=False)

    found = execute(command)
    if json:
        output.print_json([output.as_json(each) for each in found])
    else:
        rows = [
            (each.containers or "-", output.show_time(each.created_ms), each.name, each.problem)
            for each in found
        ]
        output.print_table(("containers", "created", "name", "problem"), rows)
        if not rows:
            output.print_lines([f"no backup in {place or data}" if url is None else "no backup"])


def rm(
    name: BackupName,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
    url: Service = None,
) -> None:
    """Remove a backup. What only it needed is deleted in the background.

    Copies of it (`--copy-to`) stay as they are.
    """

    async def command() -> None:
        async with writing(data, config, take_over=take_over, url=url) as store:
            await store.remove_backup(name)

    execute(command)
    output.print_json({"name": name}) if json else output.print_lines([f"removed backup {name}"])


def restore(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The backup's name; see `tierlog backup ls`.", show_default=False
        ),
    ],
    place: Place = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Move the logs (wal/) that are there away, after a question.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, for scripts.")] = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Backups of an earlier version: verify the checksums of all chunks."),
    ] = False,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Backups of an earlier version: leave out segments with damaged chunks, instead of failing.",
        ),
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    chunks: Chunks = None,
) -> None:
    """Restore a store as of a backup, into a folder without logs (wal/), or with --replace into its own.

    Everything newer than the backup is lost. Chunks that only newer data needs are kept until
    `tierlog gc sweep --confirm`, those of other backups longer. With --from, what the backup needs is copied
    first. An old folder of the store can no longer be opened.
    """
    from ..maintenance.restore import RestoreOptions

    if replace and not yes:
        check_agreed(f"Move the logs of {data} away, and lose what is newer than {name}?", asks=not json)
    options = RestoreOptions(name, deep, partial)
    done = execute(
        lambda: _restore(data, config, chunks, place, options, replaces=replace),
        hints={**_HINTS, NotOwner: ""},
        interrupted=RUN_AGAIN,
    )
    if json:
        output.print_json(output.as_json(done))
        lost = getattr(done, "lost", ())
    else:
        lost = _show_restored(done)
    # The store is there, but scripts must notice that it is not all of it.
    if lost:
        raise typer.Exit(FAILED)


async def _restore(
    data: Path,
    config: Path | None,
    chunks: str | None,
    place: str | None,
    options: Any,
    *,
    replaces: bool,
) -> RecoveredStore | RestoreReport:
    from ...storage_backends.files.local import LocalFiles
    from ..folder.paths import check_path
    from ..maintenance.replaced_logs import logs_moved_away
    from ..maintenance.restore import restore_backup
    from ..store.folder_opening import system_world
    from .copy_place import check_restored_place, opened_place

    files, world, folder = LocalFiles(), system_world(), check_path(data)
    settings = await _with_location(read_settings(config, chunks), folder)
    if place:
        await check_restored_place(place, settings.chunks, folder)
    with output.progress("restoring", None) as advance:
        run = partial(restore_backup, folder, options, settings, files, world, advance)
        async with logs_moved_away(folder, files, world, is_wanted=replaces):
            if place is None:
                return await run(None)
            async with opened_place(place, config) as source:
                return await run(source)


async def _with_location(settings: StoreConfig, folder: StoreFolder) -> StoreConfig:
    """With the bucket that the folder's logs name, which are moved away."""
    import attrs

    from ...storage_backends.files.local import LocalFiles
    from ..folder.chunk_location import recorded_location
    from ..folder.paths import list_data_folder, run_program

    files = LocalFiles()
    await run_program(files, list_data_folder(folder), folder.path)  # refuses that it is a file
    recorded = await recorded_location(files, folder)
    if settings.chunks or not recorded.chunks:
        return settings
    return attrs.evolve(settings, chunks=recorded.chunks, s3=recorded.s3)


@asynccontextmanager
async def _own_storage(data: Path, config: Path | None) -> AsyncIterator[ChunkStorage]:
    """The store's long-term storage, also if its logs are lost."""
    import anyio

    from ...storage_backends.files.local import LocalFiles
    from ..folder.chunk_location import folder_location, make_chunk_reader
    from ..folder.paths import check_path
    from ..store.folder_opening import system_world
    from ..store.read_only import open_reader

    folder, settings = check_path(data), read_settings(config, None)
    is_found = settings.chunks or await anyio.Path(folder.chunks).is_dir()
    if await anyio.Path(folder.wal).exists() or not is_found:
        # Not ``viewing``: a command that copies from here does not end at once.
        async with open_reader(data) as view:
            yield view.chunks
        return

    location = folder_location(settings)
    storage = make_chunk_reader(location, LocalFiles(), folder, system_world())
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


async def _list(chunks: ChunkStorage, *, is_copy: bool) -> list[Backup]:
    from ..maintenance.backups import list_backups

    return await list_backups(chunks, is_copy=is_copy)


async def _check_place(data: Path, config: Path | None, place: str) -> None:
    from ...storage_backends.files.local import LocalFiles
    from ..folder.chunk_location import ChunkLocation, folder_location, recorded_location
    from ..folder.paths import check_path
    from .copy_place import check_copy_place

    folder, settings = check_path(data), read_settings(config, None)
    recorded = await recorded_location(LocalFiles(), folder)
    own = recorded if recorded.chunks else folder_location(settings)
    await check_copy_place(place, own, ChunkLocation(place, settings.s3), folder)


async def _can_copy(data: Path, config: Path | None, name: str, place: str, *, verify: bool) -> bool:
    """Whether there is the backup already. Raises if it could not be copied to ``place``."""
    from ...journal.manifest.pin_record import pin_record_name
    from ...storage_backends.base.backups import check_backup_name
    from ..maintenance.place_of_copies import check_target
    from .copy_place import opened_place

    async with _own_storage(data, config) as source:
        has_backup = await source.exists(pin_record_name(check_backup_name(name)))
        # What is damaged there may be what is to be mended; the copy itself checks all of it.
        if not (has_backup and verify):
            async with opened_place(place, config, write=True) as target:
                await check_target(source, target, name)
        return has_backup


async def _copy_to(
    data: Path,
    config: Path | None,
    name: str,
    place: str,
    advance: Callable[[int, int], None],
    *,
    verify: bool,
) -> CopiedBackup:
    from ..maintenance.backup_copy import copy_backup
    from .copy_place import opened_place

    async with _own_storage(data, config) as source, opened_place(place, config, write=True) as target:
        return await copy_backup(source, name, target, advance, verify=verify)


def _show_restored(done: RecoveredStore | RestoreReport) -> tuple[Any, ...]:
    """Returns what was not restored."""
    from ..store.recover import RecoveredStore

    kept = "everything newer is lost, and its chunks are kept until `tierlog gc sweep --confirm`"
    if isinstance(done, RecoveredStore):
        show_containers(done)
        output.print_lines([f"{output.count(done.segments, 'segment')}, as of backup {done.backup}; {kept}"])
        return ()

    chunks = output.count(done.chunks, "chunk")
    lines = [
        f"{output.count(done.segments, 'segment')} with {chunks} and {output.show_bytes(done.bytes)}",
        f"as of {output.show_time(done.created_ms)}; {kept}",
    ]
    if done.unflushed:
        lines.append(f"lost with the old logs: {output.count(done.unflushed, 'unflushed byte')}")
    if done.staged:
        lines.append(f"lost with open transactions: {output.count(done.staged, 'staged segment')}")
    output.print_lines([*lines, *(f"not restored: {each.segment}: {each.reason}" for each in done.lost)])
    return done.lost
