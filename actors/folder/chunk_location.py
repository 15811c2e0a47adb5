"""Where a store's chunks are: in its own folder (``lts/``) or in a bucket.

The location is fixed when the folder is made, because a log is useless without the chunks that it refers to.
It is recorded in ``wal/chunks`` before the identity is written; a configuration that names another location
is refused with ``StoreMismatch``. Read-only views, the doctor and stores opened without a configuration use
the record. How the location is reached (endpoint, region) may change: a configuration that names the location
updates the record.

A folder without a record keeps its chunks in ``lts/``. The record is TOML and contains no secrets. Its last
line, a comment, has the CRC32C of the lines before; records of earlier versions lack it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
import attrs
from msgspec import Struct, field

from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ConfigError, DataCorruption, StoreMismatch
from ...storage_backends.base.files import (
    Close,
    Files,
    Open,
    Program,
    Read,
    remake_name,
    with_folder,
)
from ...storage_backends.base.segment_layout import StoragePlace
from ...storage_backends.base.world import World
from ...storage_backends.chunks.filesystem import FileSystemChunkReader, FileSystemChunkStorage
from ...storage_backends.chunks.filesystem_programs import create_root
from ...storage_backends.chunks.s3_location import parse_location
from ..settings.configuration import FOLDER_OF_CHUNKS, S3Config, StoreConfig, is_folder
from .identity import read_identity
from .paths import StoreFolder, run_program

if TYPE_CHECKING:
    from ...storage_backends.chunks.s3_request_counts import S3RequestCounts
    from ...storage_backends.chunks.s3_requests import S3Options


class ChunkLocation(Struct, frozen=True):
    chunks: str = ""
    """As in the configuration: ``s3://bucket/prefix``, or the absolute path of a folder that all machines of
    a store on BookKeeper share; empty for ``lts/``."""
    s3: S3Config = field(default_factory=S3Config)

    @property
    def is_bucket(self) -> bool:
        return bool(self.chunks) and not is_folder(self.chunks)

    def shown(self, folder: StoreFolder) -> str:
        """The prefix of chunk names in messages."""
        return self.chunks.rstrip("/") or folder.chunks

    def place(self, folder: StoreFolder) -> StoragePlace:
        """For readers in other processes."""
        return StoragePlace("", self.shown(folder), self.s3.endpoint, self.s3.region)


async def resolve_location(
    files: Files, folder: StoreFolder, config: StoreConfig, world: World
) -> ChunkLocation:
    """For an owner: the recorded location, or the configured one if the store is new, which is then recorded.

    Raises ``StoreMismatch`` if the configuration names another location than the record.
    """
    configured = folder_location(config)
    return await run_program(files, _resolve(folder, configured, f".chunks-{world.new_id()}"), folder.wal)


def folder_location(config: StoreConfig) -> ChunkLocation:
    """What the configuration says of a data folder. Raises ``ConfigError`` for what it cannot have."""
    if is_folder(config.chunks):
        raise ConfigError(f"chunks: {config.chunks!r} is a folder. {FOLDER_OF_CHUNKS}")
    return ChunkLocation(config.chunks, config.s3)


async def recorded_location(files: Files, folder: StoreFolder) -> ChunkLocation:
    """For a reader: the location in the folder's record."""
    return await run_program(files, _read(folder), folder.wal) or ChunkLocation()


def make_chunk_storage(
    location: ChunkLocation,
    files: Files,
    folder: StoreFolder,
    world: World,
    *,
    create: bool,
    reserve_bytes: int = 0,
    counts: S3RequestCounts | None = None,
) -> ChunkStorage:
    """The chunk storage of an owner, not open yet. ``create``: its opening makes the folder ``lts/`` if that
    is missing; otherwise that counts as not mounted (rule S20). ``reserve_bytes`` of a folder are for the
    store's own objects (rule S22). ``counts`` counts the requests to a bucket. Raises ``ConfigError`` if what
    S3 needs is not installed."""
    if not location.is_bucket:
        root = location.shown(folder)
        return FileSystemChunkStorage(files, root, world, create=create, reserve_bytes=reserve_bytes)

    require_s3(location)
    from ...storage_backends.chunks.s3 import S3ChunkStorage

    return S3ChunkStorage(parse_location(location.chunks), s3_options(location), world, counts)


def make_chunk_reader(
    location: ChunkLocation, files: Files, folder: StoreFolder, world: World
) -> ChunkStorage:
    """The chunk storage of a reader, which changes nothing; otherwise as ``make_chunk_storage``."""
    if not location.is_bucket:
        return FileSystemChunkReader(files, location.shown(folder), world)

    require_s3(location)
    from ...storage_backends.chunks.s3 import S3ChunkReader

    return S3ChunkReader(parse_location(location.chunks), s3_options(location), world)


@asynccontextmanager
async def opened_chunks(chunks: ChunkStorage) -> AsyncIterator[ChunkStorage]:
    """Open within the body, and closed also if it is cancelled."""
    await chunks.open()
    try:
        yield chunks
    finally:
        with anyio.CancelScope(shield=True):
            await chunks.close()


async def create_chunk_folder(
    location: ChunkLocation, files: Files, folder: StoreFolder, world: World
) -> None:
    """Make ``lts/`` for a new store. Raises ``InvalidArgument`` if that is impossible, ``Unavailable`` if it
    is now."""
    if not location.chunks:
        await run_program(files, create_root(folder.chunks, world.new_id()), folder.path)


async def check_location(location: ChunkLocation, files: Files, folder: StoreFolder, world: World) -> None:
    """Raise what would keep an owner from opening the location, so that a service reports it once."""
    if location.chunks:
        storage = make_chunk_reader(location, files, folder, world)
        await storage.open()
        await storage.close()


def s3_options(location: ChunkLocation) -> S3Options:
    """How its service is reached."""
    from ...storage_backends.chunks.s3_requests import S3Options

    return S3Options(**attrs.asdict(location.s3))


def require_s3(location: ChunkLocation) -> None:
    """Raises ``ConfigError`` if what S3 needs is not installed."""
    if find_spec("aiobotocore") is None:
        raise ConfigError(f"{location.chunks} needs aiobotocore: pip install 'tierlog[s3]'")


# --- the record ---------------------------------------------------------------------------------

_CHECKSUM = b"# CRC32C of the lines above: "
_BYTES_MAX = 1 << 16


def _path(folder: StoreFolder) -> str:
    return f"{folder.wal}/chunks"


def _resolve(folder: StoreFolder, configured: ChunkLocation, temporary: str) -> Program[ChunkLocation]:
    # The identity is written last, so a record without one is of an opening that did not finish.
    is_new = (yield from read_identity(folder.wal)) is None
    recorded = (yield from _read(folder)) or ChunkLocation()
    location = configured if is_new else _decide(folder, recorded, configured)
    # The one that a new folder has may have lost its name (rule W11).
    if location != recorded or (is_new and location.chunks):
        yield from _write(folder, location, temporary)
    return location


def _decide(folder: StoreFolder, recorded: ChunkLocation, configured: ChunkLocation) -> ChunkLocation:
    """The location of an existing store."""
    # Also a store in a bucket: commands without a configuration must find it.
    if not configured.chunks:
        return recorded

    # A trailing slash does not make another prefix.
    if configured.chunks.rstrip("/") != recorded.chunks.rstrip("/"):
        raise StoreMismatch(
            f"the chunks of {folder.path} are in {recorded.shown(folder)}, not in {configured.chunks}: "
            f"correct `chunks` in the configuration or name another data folder; the location is fixed when "
            f"a folder is made"
        )

    return configured


def _read(folder: StoreFolder) -> Program[ChunkLocation | None]:
    try:
        handle = yield Open(_path(folder))
    except FileNotFoundError:
        return None

    # One byte more, so that a longer file is refused.
    data = yield Read(handle, 0, _BYTES_MAX + 1)
    yield Close(handle)
    if len(data) > _BYTES_MAX:
        raise DataCorruption("the record of the chunk location is too long", file=_path(folder))
    return decode_location(data, _path(folder))


def _write(folder: StoreFolder, location: ChunkLocation, temporary: str) -> Program[None]:
    yield from with_folder(
        folder.wal,
        lambda: remake_name(_path(folder), f"{folder.wal}/{temporary}", encode_location(location)),
        with_parent=True,
    )


def encode_location(location: ChunkLocation) -> bytes:
    lines = [
        "# Where the chunks of this store are. Fixed; `tierlog` writes it.",
        f'chunks = "{location.chunks}"',
    ]
    lines += [f"{field.name} = {_toml(getattr(location.s3, field.name))}" for field in attrs.fields(S3Config)]
    body = ("\n".join(lines) + "\n").encode()
    return body + b"%s%08x\n" % (_CHECKSUM, crc32c(body))


def _toml(value: str | bool | int) -> str:
    # The text of a setting needs no escapes (``TextSetting``).
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def decode_location(data: bytes, path: str) -> ChunkLocation:
    import tomllib  # a folder with its own ``lts/`` has no record

    body, marker, checksum = data.rpartition(_CHECKSUM)
    try:
        # A flipped bit may name another bucket, where the store would go on without its chunks.
        if marker and checksum != b"%08x\n" % crc32c(body):
            raise ValueError("its checksum does not match")
        fields = tomllib.loads(data.decode())
        location = ChunkLocation(str(fields.pop("chunks")), S3Config(**fields))
        if location.is_bucket:
            parse_location(location.chunks)
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # deep nesting
        raise DataCorruption(f"the record of the chunk location is damaged ({error})", file=path) from error

    return location
