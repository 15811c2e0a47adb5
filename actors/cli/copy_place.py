"""The places of copies of backups, as options name them: a folder, or ``s3://BUCKET/PREFIX``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import typer

from ...storage_backends.base.errors import InvalidArgument, Unavailable
from ...storage_backends.chunks.s3_location import SCHEME, parse_location
from .running import notice_of_wait, read_settings

if TYPE_CHECKING:
    from ...storage_backends.base.chunk_storage import ChunkStorage
    from ...storage_backends.base.files import FileHandle, Files, Program
    from ..folder.chunk_location import ChunkLocation
    from ..folder.paths import StoreFolder

_HIDDEN = "."
_LOCK_FOLDER = ".copying"
_LOST = "lost+found"
"""Of a mount point."""


@asynccontextmanager
async def opened_place(
    place: str, config: Path | None, *, write: bool = False
) -> AsyncIterator[ChunkStorage]:
    """The storage of a copy. ``write`` creates the folder."""
    from ...storage_backends.chunks.filesystem import FileSystemChunkReader, FileSystemChunkStorage
    from ...storage_backends.files.local import LocalFiles
    from ..folder.chunk_location import ChunkLocation, make_chunk_reader, make_chunk_storage
    from ..folder.paths import StoreFolder, check_path
    from ..store.folder_opening import system_world

    check_scheme(place)
    files, world = LocalFiles(), system_world()
    if place.startswith(SCHEME):
        location, nowhere = ChunkLocation(place, read_settings(config, None).s3), StoreFolder("")
        storage = (
            make_chunk_storage(location, files, nowhere, world, create=True)
            if write
            else make_chunk_reader(location, files, nowhere, world)
        )
    elif write:
        storage = FileSystemChunkStorage(files, check_path(place).path, world)
        # What makes a new folder reports best why that fails.
        if not await anyio.Path(place).is_dir():
            await _make_folder(place, storage)
        async with _only_copy(files, check_path(place).path):
            await storage.open()
            try:
                yield storage
            finally:
                await storage.close()
        return
    else:
        await _check_folder_of_copy(place)
        storage = FileSystemChunkReader(files, check_path(place).path, world)
    with notice_of_wait(place):
        await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


async def _make_folder(place: str, storage: ChunkStorage) -> None:
    try:
        await storage.open()
    except Unavailable as error:
        if isinstance(error.__context__, FileNotFoundError):  # which is no missing mount here
            raise InvalidArgument(f"no folder can be made at {place}: name another one") from error
        raise


@asynccontextmanager
async def _only_copy(files: Files, path: str) -> AsyncIterator[None]:
    """No other process copies into the folder meanwhile, whose temporary files an opening would remove.
    Raises ``Unavailable``."""
    from ...storage_backends.base.files import Close
    from ..folder.paths import run_program
    from ..folder.process_lock import remove_lock, take_lock

    def refusal(pid: str) -> Unavailable:
        return Unavailable(
            f"process {pid} is copying a backup into {path}: wait until it has ended, or stop it"
        )

    def end(handle: FileHandle) -> Program[None]:
        try:
            yield from remove_lock(folder)
        finally:
            yield Close(handle)

    folder = f"{path}/{_LOCK_FOLDER}"
    lane = files.lane("copying", nofollow_root=path)
    with anyio.CancelScope(shield=True):
        handle = await run_program(lane, take_lock(folder, refusal), folder)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await run_program(lane, end(handle), folder)


def check_scheme(place: str) -> None:
    """Raise ``InvalidArgument`` for the URL of anything but S3, which is no folder's path either."""
    scheme, separator, _ = place.partition("://")
    if separator and scheme.isalnum() and f"{scheme}://" != SCHEME:
        raise InvalidArgument(
            f"backups are not copied to {scheme}://: name a folder, or {SCHEME}BUCKET/PREFIX"
        )
    if not separator and place.lower().startswith("s3:"):
        raise InvalidArgument(
            f"{place} is no location in S3, which is {SCHEME}BUCKET/PREFIX: write that, or ./{place} for a "
            f"folder of this name"
        )


async def _check_folder_of_copy(place: str) -> None:
    """Before the storage takes it for a mount that is missing."""
    meaning = "--from names the folder that `tierlog backup --copy-to` has written, and --data the store"
    if not place:
        raise typer.BadParameter("it is empty: name a folder")
    if not await anyio.Path(place).is_dir():
        is_file = await anyio.Path(place).exists()
        problem = f"{place} is a file" if is_file else f"there is no folder {place}"
        raise InvalidArgument(f"{problem}: {meaning}")
    if not await anyio.Path(place, "_system").is_dir():
        raise InvalidArgument(f"{place} holds no backups: {meaning}")


async def check_restored_place(place: str, chunks: str, data: StoreFolder) -> None:
    """Raise ``InvalidArgument`` if the store would be made among the copies in ``place``, into which no
    backup could be copied any more (rule P8). ``chunks`` is the bucket of its long-term storage."""
    if place.startswith(SCHEME):
        if chunks:
            there, ours = parse_location(place), parse_location(chunks)
            if there.bucket == ours.bucket and ours.prefix.startswith(there.prefix):
                raise InvalidArgument(
                    f"{chunks} is {place}, which has the copies, or is within it: restore into another "
                    f"prefix or bucket"
                )
        return
    path = await anyio.Path(place).resolve()
    is_within = (await anyio.Path(data.path).resolve()).is_relative_to(path)
    if is_within and await (path / "_system").is_dir():
        raise InvalidArgument(
            f"{data.path} is {place}, which has the copies, or is within it: restore into a folder elsewhere"
        )


async def check_copy_place(place: str, own: ChunkLocation, reached: ChunkLocation, data: StoreFolder) -> None:
    """Raise ``InvalidArgument`` unless copies of backups of the store in ``data`` may be made in ``place``,
    before anything is made (rule P8). ``own`` is the store's long-term storage; ``reached`` is how
    ``place`` is reached, if it is in a bucket."""
    check_scheme(place)
    if not place:
        raise InvalidArgument("--copy-to is empty: name a folder, or s3://BUCKET/PREFIX")
    if place.startswith(SCHEME):
        _check_bucket(place, own, reached)
        await _refuse_in_stores(reached)
    else:
        await _check_folder(place, data)


def _check_bucket(place: str, own: ChunkLocation, reached: ChunkLocation) -> None:
    there = parse_location(place)
    if not own.chunks or own.s3.endpoint != reached.s3.endpoint:
        return

    ours = parse_location(own.chunks)
    nested = ours.prefix.startswith(there.prefix) or there.prefix.startswith(ours.prefix)
    if there.bucket == ours.bucket and nested:
        raise InvalidArgument(
            f"{place} and the store's own long-term storage {own.chunks} are the same, or one is within the "
            f"other: copy to another prefix or bucket"
        )


async def _refuse_in_stores(reached: ChunkLocation) -> None:
    """Raise ``InvalidArgument`` if the place is that of a store in the bucket, or within one or its long-term
    storage."""
    from ...journal.coordination.contract import IDENTITY
    from ...storage_backends.chunks.s3_objects import S3Objects
    from ..folder.chunk_location import require_s3, s3_options
    from ..store.folder_opening import system_world
    from ..store.nesting import IDENTITY_BYTES, is_identity, refuse_inside_bucket

    require_s3(reached)
    location, world = parse_location(reached.chunks), system_world()
    objects = S3Objects(location, s3_options(reached))
    with notice_of_wait(reached.chunks):
        await objects.open()
    try:
        if is_identity(await objects.find_elsewhere(f"{location.prefix}{IDENTITY}", IDENTITY_BYTES)):
            raise InvalidArgument(f"{location} is a store: copy to another prefix or bucket")
        await refuse_inside_bucket(objects, location, world)
    finally:
        with anyio.CancelScope(shield=True):
            await objects.close()


async def _check_folder(place: str, data: StoreFolder) -> None:
    from ..folder.paths import check_path

    path = await anyio.Path(check_path(place).path).resolve()
    # Each may be a link.
    for own in (await anyio.Path(data.path).resolve(), await anyio.Path(data.chunks).resolve()):
        if path.is_relative_to(own) or own.is_relative_to(path):
            raise InvalidArgument(
                f"{place} and the store in {data.path} are the same folder, or one is within the other: copy "
                f"to a folder elsewhere"
            )
    for above in (path, *path.parents):
        if await (above / "wal" / "store").exists():
            raise InvalidArgument(f"{place} is in the folder of a store, {above}: copy to a folder elsewhere")
    if await path.is_dir() and (foreign := _foreign([each.name async for each in path.iterdir()])):
        raise InvalidArgument(
            f"{place} has other files, such as {foreign}: copy to an empty folder, or to one that has copies"
        )


def _foreign(names: Iterable[str]) -> str:
    """A file that no copy has, in a folder that was never a place of copies; empty if there is none."""
    from ...storage_backends.chunks.filesystem_programs import IDENTIFICATION

    found = sorted(names)
    # Either alone: some programs that copy folders leave hidden files out.
    if IDENTIFICATION in found or "_system" in found:
        return ""
    return next((each for each in found if each != _LOST and not each.startswith(_HIDDEN)), "")
