"""Commands for import and export of the legacy layout, backup and restore."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...storage_backends.base.errors import InvalidArgument, SegmentNotFound
from . import output
from .options import DEFAULT_DATA, Chunks, Config, Data, Json, Names, TakeOver, check_selection, folder_path
from .running import FAILED, Hints, execute, lengths_of, owning, read_settings, viewing

if TYPE_CHECKING:
    from ...storage_backends.base.chunk_storage import ChunkStorage
    from ..legacy_rolling.export import Exported
    from ..maintenance.backup import BackupOptions
    from ..maintenance.backup_objects import Manifest
    from ..maintenance.restore import RestoreReport
    from ..maintenance.transfer import Imported
    from ..store.read_only import StoreView
    from ..store.store import SegmentStore

_FOLDERS = (
    "--to and --from name the folder that `tierlog backup --to` has written; --data names the store, and "
    "without --to or --from the backups are in its long-term storage"
)
_IMPORT_HINTS: Hints = {
    SegmentNotFound: "it needs a file NAME$header in long-term storage; `tierlog chunks ls` lists the files"
}


def export(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="Export all segments.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite header files with other contents.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Write header files of the legacy layout, so that legacy software can read these segments. Flushes
    first.

    No data is copied. A header describes the segment as it is now, without later appends. It cannot express a
    start offset inside a chunk: legacy readers begin at the start of that chunk, and the column
    "readable again" counts the truncated bytes that they read. The header of a sealed segment is read-only.
    """
    check_selection(names, everything)

    async def command() -> list[Exported]:
        from ..maintenance.transfer import export_segment

        async with owning(data, config, take_over=take_over) as store:
            await store.flush()
            lengths = await lengths_of(store, names)
            done: list[Exported] = []
            with output.progress("exporting", sum(lengths.values())) as advance:
                for name in lengths:
                    done.append(await export_segment(store, name, replace=replace))
                    advance(done[-1].length, 0)
            return done

    done = execute(command)
    if json:
        output.print_json([output.as_json(each) for each in done])
    else:
        rows = [
            (e.length, e.start_offset, e.hidden_bytes, e.chunks, "sealed" if e.sealed else "open", e.header)
            for e in done
        ]
        output.print_table(
            ("length", "start", "readable again", "chunks", "state", "header"),
            rows,
            ("readable again", "chunks", "start"),
        )


def import_(
    names: Names = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Import all segments that have a header file.")
    ] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="PREFIX", help="With --all: only names that begin with PREFIX.")
    ] = "",
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Import segments of the legacy layout whose files are in long-term storage.

    All their bytes are read once, for checksums. The files stay where they are and are deleted with their
    segment. Legacy software must not write to them any more. With --all, segments that cannot be imported are
    skipped and listed.
    """
    check_selection(names, everything)

    async def command() -> list[Imported]:
        from ..maintenance.transfer import import_segment, legacy_segments, try_import

        async with owning(data, config, take_over=take_over) as store:
            wanted = names or await legacy_segments(store, prefix)
            # A segment that the user named must be imported; of --all one bad header must not stop the
            # others.
            act = import_segment if names else try_import
            with output.progress("importing", None) as advance:
                return [await act(store, name, advance) for name in wanted]

    done = execute(command, hints=_IMPORT_HINTS)
    if json:
        output.print_json([output.as_json(each) for each in done])
    else:
        output.print_table(
            ("length", "outcome", "name", ""), [(e.length, e.outcome.value, e.name, e.reason) for e in done]
        )
    if any(each.outcome.value == "failed" for each in done):
        raise typer.Exit(FAILED)


def backup(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The backup's name; default: the current time.", show_default=False
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FOLDER",
            parser=folder_path,
            help="Write the backup to this folder; default: long-term storage.",
        ),
    ] = None,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only", help="Do not open the store or flush: back up what is flushed. Needs --to."
        ),
    ] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List the backups in long-term storage or in --to.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Back up the metadata of all segments: names, lengths, attributes, writers and lists of chunks.

    Chunks are not copied: the backup needs the long-term storage that it refers to. The command flushes
    first, so that the backup is complete. With --read-only it does not, and another process may have the
    folder open; bytes that are only in the log are then missing.
    """
    if show:
        _show_backups(execute(lambda: _list(data, config, to)), json)
        return
    if read_only and to is None:
        raise typer.BadParameter("--read-only needs --to: only an owner may write to long-term storage")

    async def command() -> tuple[str, Manifest]:
        if to is not None and read_only:
            async with viewing(data) as view, _folder_of_backups(to, write=True) as target:
                return await _back_up_view(view, data, name, target)
        # Other commands need the owner's right to write; a backup can do without.
        remedy = "add --read-only --to FOLDER, or stop the service"
        async with owning(data, config, take_over=take_over, remedy=remedy) as store:
            await store.flush()
            if to is None:
                return await _back_up_store(store, data, name, None)
            async with _folder_of_backups(to, write=True) as target:
                return await _back_up_store(store, data, name, target)

    made, manifest = execute(command)
    _show_backup(made, manifest, json)


async def _back_up_store(
    store: SegmentStore, data: Path, name: str | None, target: ChunkStorage | None
) -> tuple[str, Manifest]:
    from ..maintenance.backup import back_up_store

    options = await _backup_options(data, name)
    with output.progress("backing up", None) as advance:
        return options.name, await back_up_store(store, target, options, advance)


async def _back_up_view(
    view: StoreView, data: Path, name: str | None, target: ChunkStorage
) -> tuple[str, Manifest]:
    from ..maintenance.backup import BackupSource, create_backup

    sources: list[BackupSource] = []
    for container in view.containers:
        # One after the other: each replays a log.
        snapshot = await container.snapshot()
        sources.append(
            BackupSource(
                container.index,
                snapshot.opened.epoch,
                snapshot.cold,
                snapshot.metadata,
                snapshot.storage,
            )
        )
    options = await _backup_options(data, name)
    with output.progress("backing up", None) as advance:
        return options.name, await create_backup(sources, target, options, advance)


async def _backup_options(data: Path, name: str | None) -> BackupOptions:
    from ...storage_backends.files.local import LocalFiles
    from ..folder.layout_version import is_upgraded
    from ..folder.paths import check_path, existing_identity
    from ..maintenance.backup import BackupOptions
    from ..maintenance.backup_objects import check_backup_name
    from ..store.opening import system_world
    from ..telemetry.utc import show_utc

    files, folder, now = LocalFiles(), check_path(data), system_world().time_ms()
    # UTC without colons: names sort by time, and every file system and S3 takes them.
    given = check_backup_name(name or show_utc(now / 1000, "%Y%m%dT%H%M%SZ", "{}s"))
    identity = await existing_identity(files, folder)
    return BackupOptions(given, identity.store_id, now, await is_upgraded(files, folder))


@asynccontextmanager
async def _folder_of_backups(path: Path, *, write: bool = False) -> AsyncIterator[ChunkStorage]:
    """The storage of a folder with backups only. ``write`` creates the folder."""
    import anyio

    from ...storage_backends.chunks.filesystem import FileSystemChunkReader, FileSystemChunkStorage
    from ...storage_backends.files.local import LocalFiles
    from ..folder.paths import check_path
    from ..maintenance.backup_objects import BACKUPS
    from ..store.opening import system_world

    folder = anyio.Path(path)
    if not write and not await folder.is_dir():
        raise InvalidArgument(f"there is no folder {path}: {_FOLDERS}")
    # Here, because the storage would take it for a mount that is missing.
    if not write and not await (folder / BACKUPS).is_dir():
        raise InvalidArgument(f"{path} holds no backups: {_FOLDERS}")

    # To list backups nothing is created, also on a mount that is read-only.
    kind = FileSystemChunkStorage if write else FileSystemChunkReader
    storage = kind(LocalFiles(), check_path(path).path, system_world())
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


async def _list(data: Path, config: Path | None, to: Path | None) -> list[tuple[str, Manifest]]:
    from ..maintenance.backup import list_backups, read_manifest

    async def read(storage: ChunkStorage) -> list[tuple[str, Manifest]]:
        return [(each, await read_manifest(storage, each)) for each in await list_backups(storage)]

    # Without what may be lost, which is when backups are listed: the data folder, or its wal/.
    if to is not None:
        async with _folder_of_backups(to) as storage:
            return await read(storage)
    async with _storage_of_lost_logs(data, config) as chunks:
        if chunks is not None:
            return await read(chunks)
    async with viewing(data) as view:
        return await read(view.chunks)


@asynccontextmanager
async def _storage_of_lost_logs(data: Path, config: Path | None) -> AsyncIterator[ChunkStorage | None]:
    """Long-term storage as ``tierlog restore`` finds it, if the folder has no wal/; None if it has, or if
    there is nothing."""
    import anyio

    from ...storage_backends.files.local import LocalFiles
    from ..folder.chunk_location import ChunkLocation, make_chunk_reader
    from ..folder.paths import check_path
    from ..store.opening import system_world

    folder, settings = check_path(data), read_settings(config, None)
    is_found = settings.chunks or await anyio.Path(folder.chunks).is_dir()
    if await anyio.Path(folder.wal).exists() or not is_found:
        yield None
        return

    location = ChunkLocation(settings.chunks, settings.s3)
    storage = make_chunk_reader(location, LocalFiles(), folder, system_world())
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


def restore(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The backup's name; see `tierlog backup --list`.", show_default=False
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            parser=folder_path,
            help="The folder of `backup --to`; default: long-term storage.",
        ),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Verify the checksums of all chunks first.")] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out segments with damaged chunks, instead of failing.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    chunks: Chunks = None,
) -> None:
    """Restore a store from a backup and its long-term storage, into a folder without logs (wal/).

    Everything newer than the backup is lost, and so are transactions. Chunks of lost segments are kept until
    `tierlog gc sweep --confirm`; `tierlog chunks ls --unreferenced` lists them. Segments get new ids. An old
    folder of the store can no longer be opened.
    """
    from ...storage_backends.files.local import LocalFiles
    from ..folder.paths import check_path
    from ..maintenance import restore as restore_module
    from ..store.opening import system_world

    async def restore_from(backups: ChunkStorage | None) -> RestoreReport:
        options = restore_module.RestoreOptions(name, deep, partial)
        settings, world = read_settings(config, chunks), system_world()
        with output.progress("checking chunks", None) as advance:
            return await restore_module.restore(
                check_path(data), backups, options, settings, LocalFiles(), world, advance
            )

    async def command() -> RestoreReport:
        if source is None:
            return await restore_from(None)
        async with _folder_of_backups(source) as backups:
            return await restore_from(backups)

    report = execute(command)
    if json:
        output.print_json(output.as_json(report))
    else:
        _show_restored(report)
    # The store is there, but scripts must notice that it is not all of it.
    if report.lost:
        raise typer.Exit(FAILED)


def _extent(of: RestoreReport | Manifest) -> str:
    return (
        f"{output.count(of.segments, 'segment')} with {output.count(of.chunks, 'chunk')} and "
        f"{output.show_bytes(of.bytes)}"
    )


def _show_restored(report: RestoreReport) -> None:
    lines = [_extent(report)]
    lines.append(
        f"as of {output.show_time(report.created_ms)}; everything newer is lost, and its chunks are kept "
        f"until `tierlog gc sweep --confirm`"
    )
    if report.unflushed:
        lines.append(f"lost with the old logs: {output.count(report.unflushed, 'unflushed byte')}")
    if report.staged:
        lines.append(f"lost with open transactions: {output.count(report.staged, 'staged segment')}")
    output.print_lines([*lines, *(f"not restored: {each.segment}: {each.reason}" for each in report.lost)])


def _show_backup(name: str, manifest: Manifest, json: bool) -> None:
    if json:
        output.print_json({"name": name, **_summary(manifest)})
        return

    lines = [f"backup {name}: {_extent(manifest)}"]
    if manifest.unflushed:
        lines.append(f"not in the backup: {output.count(manifest.unflushed, 'byte')} only in the log")
    if manifest.staged:
        lines.append(
            f"not in the backup: {output.count(manifest.staged, 'staged segment')} of open transactions"
        )
    output.print_lines(lines)


def _show_backups(found: list[tuple[str, Manifest]], json: bool) -> None:
    if json:
        output.print_json([{"name": name, **_summary(manifest)} for name, manifest in found])
    else:
        rows = [
            (m.segments, m.chunks, m.bytes, m.unflushed, output.show_time(m.created_ms), name)
            for name, m in found
        ]
        output.print_table(
            ("segments", "chunks", "bytes", "unflushed", "created", "name"),
            rows,
            ("unflushed", "chunks", "segments"),
        )


def _summary(manifest: Manifest) -> dict[str, Any]:
    counts = ("created_ms", "upgraded", "segments", "chunks", "bytes", "unflushed", "staged")
    return {
        "store_id": manifest.store_id.hex(),
        "epochs": list(manifest.epochs),
        **{key: getattr(manifest, key) for key in counts},
    }
