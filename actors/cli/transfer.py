"""Commands that move what a store knows: import and export of the legacy layout, backup and restore."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .options import DEFAULT_DATA, Chunks, Config, Data, Json, TakeOver
from .running import FAILED, execute, read_settings, viewing, writing

if TYPE_CHECKING:
    from ...storage_backends.base.chunk_storage import ChunkStorage
    from ..legacy_rolling.export import Exported
    from ..maintenance.backup import BackupSource
    from ..maintenance.backup_objects import Manifest
    from ..maintenance.maintenance import Imported
    from ..maintenance.restore import RestoreReport
    from ..store.store import SegmentStore

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="The segments' names.", show_default=False)
]


def export(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="Export all segments.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite header files that say something else.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Write header files of the legacy layout, so that software of that layout can read these segments. It
    flushes first.

    No byte of data is copied. A header says what is there now; appends afterwards are not in it. A start
    inside a chunk cannot be said: an older reader begins at that chunk's start, and the output tells where
    that is. A sealed segment's header is read-only.
    """
    _check_choice(names, everything)

    async def command() -> list[Exported]:
        from ..maintenance.maintenance import export_segment

        async with writing(data, config, take_over=take_over) as store:
            opened = _embedded(store)
            await opened.flush()
            wanted = names or await opened.list_segments()
            done: list[Exported] = []
            with output.progress(
                "exporting", sum([(await opened.segment_info(name)).length for name in wanted])
            ) as advance:
                for name in wanted:
                    done.append(await export_segment(opened, name, replace=replace))
                    advance(done[-1].length, 0)
            return done

    done = execute(command)
    if json:
        output.print_json([_fields(each) for each in done])
    else:
        rows = [
            (e.length, e.start_offset, e.hidden_bytes, e.chunks, "sealed" if e.sealed else "open", e.header)
            for e in done
        ]
        output.print_table(("length", "start", "seen again", "chunks", "state", "header"), rows)


def import_(
    names: Names = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Import all segments that have a header file.")
    ] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", help="With --all: only those whose names begin with it.")
    ] = "",
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Make segments of the legacy layout, whose files lie in long-term storage, segments of this store.

    All their bytes are read once, for their checksums; the files stay where they are, and are deleted with
    their segment. The software of the legacy layout must not write them any more. With --all, what cannot be
    imported is passed over and told.
    """
    _check_choice(names, everything)

    async def command() -> list[Imported]:
        from ..maintenance.maintenance import import_segment, legacy_segments, try_import

        async with writing(data, config, take_over=take_over) as store:
            opened = _embedded(store)
            wanted = names or await legacy_segments(opened, prefix)
            act = import_segment if names else try_import
            with output.progress("importing", None) as advance:
                return [await act(opened, name, advance) for name in wanted]

    done = execute(command)
    if json:
        output.print_json([_fields(each) for each in done])
    else:
        output.print_table(
            ("length", "outcome", "name", ""), [(e.length, e.outcome.value, e.name, e.reason) for e in done]
        )
    if any(each.outcome.value == "failed" for each in done):
        raise typer.Exit(FAILED)


def backup(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The backup's name; default: the time.", show_default=False),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FOLDER", help="Write it to a folder of its own; default: long-term storage."
        ),
    ] = None,
    as_it_is: Annotated[
        bool,
        typer.Option(
            "--as-it-is", help="Own nothing and flush nothing: back up what is flushed now. Needs --to."
        ),
    ] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List the backups there are, in long-term storage or in --to.")
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    take_over: TakeOver = False,
) -> None:
    """Back up what the store knows of all its segments: names, lengths, attributes, writers, and which chunks
    they are made of.

    The chunks themselves are not copied: a backup is worth as much as the long-term storage that it refers
    to. It flushes first, so that the backup has everything. With --as-it-is another process may have the
    folder open; bytes that are only in the log are then missing.
    """
    if show:
        _show_backups(execute(lambda: _list(data, to)), json)
        return
    if as_it_is and to is None:
        raise typer.BadParameter("--as-it-is needs --to: long-term storage is written by its owner alone")

    async def command() -> tuple[str, Manifest]:
        if as_it_is:
            return await _back_up_view(data, name, to)
        async with writing(data, config, take_over=take_over) as store:
            return await _back_up_store(_embedded(store), data, name, to)

    made, manifest = execute(command)
    _show_backup(made, manifest, json)


async def _back_up_store(
    store: SegmentStore, data: Path, name: str | None, to: Path | None
) -> tuple[str, Manifest]:
    from ..maintenance.maintenance import back_up

    await store.flush()
    terms = await _terms(data, name)
    with output.progress("backing up", None) as advance:
        if to is None:
            return terms.name, await back_up(store, None, terms, advance)
        async with _folder_of_backups(to, write=True) as target:
            return terms.name, await back_up(store, target, terms, advance)


async def _back_up_view(data: Path, name: str | None, to: Path | None) -> tuple[str, Manifest]:
    from ..maintenance.backup import BackupSource, create_backup

    assert to is not None
    async with viewing(data) as view, _folder_of_backups(to, write=True) as target:
        sources: list[BackupSource] = []
        for container in view.containers:
            snapshot = await container.snapshot()
            sources.append(
                BackupSource(container.index, snapshot.opened.epoch, snapshot.state, snapshot.storage)
            )
        terms = await _terms(data, name)
        with output.progress("backing up", None) as advance:
            return terms.name, await create_backup(sources, target, terms, advance)


async def _terms(data: Path, name: str | None) -> Any:
    from datetime import UTC, datetime

    from ...storage_backends.files.local import LocalFiles
    from ..folder.layout_version import is_upgraded
    from ..folder.paths import check_path, existing_identity
    from ..maintenance.backup import BackupOptions
    from ..maintenance.backup_objects import check_backup_name
    from ..store.opening import system_world

    files, folder, now = LocalFiles(), check_path(data), system_world().wall_clock()
    given = check_backup_name(name or datetime.fromtimestamp(now, tz=UTC).strftime("%Y%m%dT%H%M%SZ"))
    identity = await existing_identity(files, folder)
    return BackupOptions(given, identity.store_id, max(0, int(now * 1000)), await is_upgraded(files, folder))


@asynccontextmanager
async def _folder_of_backups(path: Path, *, write: bool = False) -> AsyncIterator[ChunkStorage]:
    """A folder that holds backups and nothing else; to ``write`` there, it is made."""
    from ...storage_backends.chunks.filesystem import FileSystemChunkReader, FileSystemChunkStorage
    from ...storage_backends.files.local import LocalFiles
    from ..folder.paths import check_path
    from ..store.opening import system_world

    kind = FileSystemChunkStorage if write else FileSystemChunkReader
    storage = kind(LocalFiles(), check_path(path).path, system_world())
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


async def _list(data: Path, to: Path | None) -> list[tuple[str, Manifest]]:
    from ..maintenance.backup import list_backups, read_object
    from ..maintenance.backup_objects import decode_manifest, manifest_name

    async def look(storage: ChunkStorage) -> list[tuple[str, Manifest]]:
        names = await list_backups(storage)
        return [
            (each, decode_manifest(await read_object(storage, manifest_name(each)), manifest_name(each)))
            for each in names
        ]

    if to is not None:
        async with _folder_of_backups(to) as storage:
            return await look(storage)
    async with viewing(data) as view:
        return await look(view.chunks)


def restore(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The backup's name, as `backup --list` shows it.", show_default=False
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FOLDER", help="Where `backup --to` wrote it; default: long-term storage."
        ),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all chunks and compare every checksum first.")
    ] = False,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Leave out segments whose chunks are not whole, instead of refusing."),
    ] = False,
    json: Json = False,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    chunks: Chunks = None,
) -> None:
    """Make a store out of a backup and its long-term storage. The folder has no logs (wal/) yet; its lts/
    stands where it always did.

    What is newer than the backup is lost for good: its chunks are collected once the store is opened, so look
    with `chunks ls --unreferenced` before. Transactions are lost too. Segments get new ids. The old folder,
    if there is one, cannot be opened any more.
    """
    from ...storage_backends.files.local import LocalFiles
    from ..folder.paths import check_path
    from ..maintenance.restore import RestoreOptions
    from ..maintenance.restore import restore as make_store
    from ..store.opening import system_world

    async def command() -> RestoreReport:
        settings = read_settings(config, chunks)
        terms = RestoreOptions(name, deep, partial)
        with output.progress("checking chunks", None) as advance:
            if source is None:
                return await make_store(
                    check_path(data), None, terms, settings, LocalFiles(), system_world(), advance
                )
            async with _folder_of_backups(source) as backups:
                return await make_store(
                    check_path(data), backups, terms, settings, LocalFiles(), system_world(), advance
                )

    report = execute(command)
    if json:
        output.print_json(_fields(report))
    else:
        _show_restored(report)
    if report.lost:
        raise typer.Exit(FAILED)


def _extent(told: RestoreReport | Manifest) -> str:
    return (
        f"{output.count(told.segments, 'segment')} with {output.count(told.chunks, 'chunk')} and "
        f"{output.show_bytes(told.bytes)}"
    )


def _show_restored(report: RestoreReport) -> None:
    lines = [_extent(report)]
    lines.append(f"as they were at {output.show_time(report.created_ms)}; what is newer is lost")
    if report.unflushed:
        lines.append(f"lost with the old logs: {output.count(report.unflushed, 'byte')} that were only there")
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
        output.print_table(("segments", "chunks", "bytes", "unflushed", "taken", "name"), rows)


def _summary(manifest: Manifest) -> dict[str, Any]:
    counts = ("created_ms", "upgraded", "segments", "chunks", "bytes", "unflushed", "staged")
    return {
        "store_id": manifest.store_id.hex(),
        "epochs": list(manifest.epochs),
        **{key: getattr(manifest, key) for key in counts},
    }


def _check_choice(names: list[str] | None, everything: bool) -> None:
    if bool(names) == everything:
        raise typer.BadParameter("name segments, or take --all")


def _embedded(store: object) -> SegmentStore:
    """What ``writing`` gives without a service."""
    from ..store.store import SegmentStore

    assert isinstance(store, SegmentStore)
    return store


def _fields(found: Any) -> dict[str, Any]:
    import attrs

    return attrs.asdict(
        found, value_serializer=lambda _, __, value: value.value if isinstance(value, Enum) else value
    )
