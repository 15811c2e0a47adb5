"""Where a store's chunks are: in its own folder, or in a bucket; and the chunk storage that goes there.

Owns: the record of the place, ``wal/chunks``, the comparison with the configuration, and the choice of the
implementation. Does not own: what the implementations do, nor who opens them.

A store's chunks stay where they were begun: a log that refers to chunks elsewhere is worth nothing. So the
place is written down when the folder is made, before its identity is, and another one in the configuration is
``StoreMismatch`` ever after. Views, the doctor and openings without a configuration find the chunks by the
record. How the place is reached (endpoint, region) may change: a configuration that names the place is
followed, and noted.

A folder without the record keeps its chunks in ``lts/``. The record is TOML and holds no secrets.
"""

from __future__ import annotations

import tomllib
from importlib.util import find_spec

import attrs

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ConfigError, DataCorruption, StoreMismatch
from ...storage_backends.base.files import (
    Close,
    Files,
    MakeFolder,
    Open,
    Program,
    Read,
    Rename,
    Size,
    Sync,
    SyncFolder,
    Write,
)
from ...storage_backends.base.world import World
from ...storage_backends.chunks.filesystem import FileSystemChunkStorage
from ...storage_backends.chunks.filesystem_reader import FileSystemChunkReader
from ...storage_backends.chunks.s3_location import parse_location
from ..settings.configuration import S3Config, StoreConfig
from .identity import read_identity
from .paths import StoreFolder, run_program


@attrs.frozen
class ChunkLocation:
    chunks: str = ""
    """As in the configuration: ``s3://bucket/prefix``; empty for ``lts/``."""
    s3: S3Config = attrs.field(factory=S3Config)

    def shown(self, folder: StoreFolder) -> str:
        """What stands before a chunk's name in messages."""
        return self.chunks.rstrip("/") or folder.chunks


async def resolve_location(
    files: Files, folder: StoreFolder, config: StoreConfig, world: World
) -> ChunkLocation:
    """For an owner: the place of an existing store, or the configured one for a new store, which is written
    down."""
    asked = ChunkLocation(config.chunks, config.s3)
    return await run_program(files, _settle(folder, asked, f".chunks-{world.new_id()}"), folder.wal)


async def recorded_location(files: Files, folder: StoreFolder) -> ChunkLocation:
    """For a reader: the place that the folder's record names."""
    return await run_program(files, _read(folder), folder.wal) or ChunkLocation()


def make_chunk_storage(place: ChunkLocation, files: Files, folder: StoreFolder, world: World) -> ChunkStorage:
    """For an owner, not open yet. ``ConfigError`` if what S3 needs is not installed."""
    if not place.chunks:
        return FileSystemChunkStorage(files, folder.chunks, world)

    _require_s3(place)
    from ...storage_backends.chunks.s3 import S3ChunkStorage
    from ...storage_backends.chunks.s3_requests import S3Options

    return S3ChunkStorage(parse_location(place.chunks), S3Options(**attrs.asdict(place.s3)), world)


def make_chunk_reader(place: ChunkLocation, files: Files, folder: StoreFolder, world: World) -> ChunkStorage:
    """As ``make_chunk_storage``, for somebody who changes nothing."""
    if not place.chunks:
        return FileSystemChunkReader(files, folder.chunks, world)

    _require_s3(place)
    from ...storage_backends.chunks.s3_reader import S3ChunkReader
    from ...storage_backends.chunks.s3_requests import S3Options

    return S3ChunkReader(parse_location(place.chunks), S3Options(**attrs.asdict(place.s3)), world)


async def check_location(place: ChunkLocation, files: Files, folder: StoreFolder, world: World) -> None:
    """Raise what would keep an owner from opening it: said once and at once, by whoever starts the owners."""
    if place.chunks:
        storage = make_chunk_reader(place, files, folder, world)
        await storage.open()
        await storage.close()


def _require_s3(place: ChunkLocation) -> None:
    if find_spec("aiobotocore") is None:
        raise ConfigError(f"long-term storage in {place.chunks} needs aiobotocore: pip install 'tierlog[s3]'")


# --- the record ---------------------------------------------------------------------------------


def _path(folder: StoreFolder) -> str:
    return f"{folder.wal}/chunks"


def _settle(folder: StoreFolder, asked: ChunkLocation, temporary: str) -> Program[ChunkLocation]:
    is_new = (yield from read_identity(folder.wal)) is None
    found = yield from _read(folder)
    settled = asked if is_new else _reconciled(folder, found or ChunkLocation(), asked)
    if settled != (found or ChunkLocation()):
        yield from _write(folder, settled, temporary)
    return settled


def _reconciled(folder: StoreFolder, found: ChunkLocation, asked: ChunkLocation) -> ChunkLocation:
    """Decide sync: what an existing store goes on with."""
    if not asked.chunks:
        return found

    if asked.chunks.rstrip("/") != found.chunks.rstrip("/"):
        raise StoreMismatch(
            f"the chunks of {folder.path} are in {found.shown(folder)}, not in {asked.chunks}: correct "
            f"`chunks` in the configuration, or "
            "name another data folder; the place is fixed when a folder is made"
        )

    return asked


def _read(folder: StoreFolder) -> Program[ChunkLocation | None]:
    try:
        handle = yield Open(_path(folder))
    except FileNotFoundError:
        return None

    size = yield Size(handle)
    data = yield Read(handle, 0, size)
    yield Close(handle)
    return _decode(data, _path(folder))


def _write(folder: StoreFolder, place: ChunkLocation, temporary: str) -> Program[None]:
    path = f"{folder.wal}/{temporary}"
    yield MakeFolder(folder.wal)
    handle = yield Open(path, write=True, create=True)
    yield Write(handle, 0, [_encode(place)])
    yield Sync(handle)
    yield Close(handle)
    yield Rename(path, _path(folder))
    yield SyncFolder(folder.wal)


def _encode(place: ChunkLocation) -> bytes:
    lines = [
        "# Where the chunks of this store are. Fixed; `tierlog` writes it.",
        f'chunks = "{place.chunks}"',
    ]
    lines += [f"{field.name} = {_toml(getattr(place.s3, field.name))}" for field in attrs.fields(S3Config)]
    return ("\n".join(lines) + "\n").encode()


def _toml(value: str | bool | int) -> str:
    # A setting's text needs no escapes (config_units.TextSetting).
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def _decode(data: bytes, path: str) -> ChunkLocation:
    try:
        fields = tomllib.loads(data.decode())
        place = ChunkLocation(str(fields.pop("chunks")), S3Config(**fields))
        if place.chunks:
            parse_location(place.chunks)
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # Deep nests are beyond the parser.
        raise DataCorruption(
            f"the record of where the chunks are is damaged ({error}): restore it from a backup", file=path
        ) from error

    return place
