"""A store in a bucket: its logs, records and chunks are objects below one prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from ...journal.coordination.contract import CONTROL, IDENTITY, TERM, Coordination
from ...journal.coordination.objects import ObjectCoordination
from ...journal.log.s3_calls import RepeatedCalls
from ...journal.log.s3_layout import S3LogOptions
from ...journal.log.s3_log import S3Log
from ...journal.manifest.element import CONTAINERS_PREFIX
from ...journal.manifest.store_record import MIGRATION_RECORD, STORE_RECORD, being_moved
from ...storage_backends.base.errors import ConfigError, DataCorruption, InvalidArgument, StoreMismatch
from ...storage_backends.base.object_store import ObjectStore
from ...storage_backends.base.world import World
from ...storage_backends.chunks.s3_location import S3Location
from ...storage_backends.chunks.s3_request_counts import S3RequestCounts
from ..container.checkpoint import CheckpointOptions
from ..folder.chunk_location import ChunkLocation, require_s3, s3_options
from ..settings.configuration import StoreConfig
from ..telemetry.logging import get_logger
from .nesting import CHUNKS, DELAYS, PATIENCE, refuse_around_bucket, refuse_inside_bucket
from .shared import SharedPlace

if TYPE_CHECKING:
    from ...storage_backends.chunks.s3_objects import S3Objects

_LOGS, _CHUNKS, _LEASES, _TRIAL = "wal/", CHUNKS, "leases/", "trial"
_log = get_logger("node")
_GROUPS_MAX, _SMALL_GROUP = 128, 64 << 10
"""A checkpoint is due after so many small groups, because an opening fetches each."""
_COSTLY_GROUPS_MAX = 4096


class BucketPlace(SharedPlace):
    records = (_LOGS, IDENTITY, TERM, CONTROL, _LEASES, _TRIAL)

    def __init__(self, location: S3Location, config: StoreConfig, world: World) -> None:
        if config.chunks:
            raise ConfigError(
                f"chunks: a store in a bucket has its chunks in {location}{_CHUNKS}, not in {config.chunks}: "
                f"leave the setting out"
            )
        self._location = location
        self._config = config
        self._world = world
        self.counts = S3RequestCounts()
        self._objects: S3Objects | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if self._objects is not None:
                with anyio.CancelScope(shield=True):
                    await self._objects.close()

    async def open(self) -> None:
        location = ChunkLocation(str(self._location), self._config.s3)
        require_s3(location)
        # Imported for the stores that need it: its client takes long.
        from ...storage_backends.chunks.s3_objects import S3Objects

        objects = S3Objects(self._location, s3_options(location), self.counts)
        await objects.open()
        self._objects = objects
        self.coordination = ObjectCoordination(objects, "", self._world)

    async def begin(self) -> None:
        assert self._objects is not None
        await refuse_inside_bucket(self._objects, self._location, self._world)
        await refuse_others(self._objects, self.coordination, self._world)
        if not self._location.prefix:
            _log.warning(
                "whole_bucket",
                place=str(self._location),
                reason="without a prefix the store has the whole bucket, in which no other one can be made",
            )

    async def locate_chunks(self) -> ChunkLocation:
        return ChunkLocation(f"{self._location}{_CHUNKS}", self._config.s3)

    async def new_chunks(self) -> ChunkLocation:
        return await self.locate_chunks()

    async def check_target(self, chunks: ChunkLocation) -> bool:
        assert self._objects is not None
        await refuse_inside_bucket(self._objects, self._location, self._world)
        has_logs, own = False, chunks.chunks.removeprefix(str(self._location))
        async with aclosing(self._objects.list("")) as listed:
            async for each in listed:
                is_log = each.key.startswith(_LOGS)
                has_logs |= is_log
                if not is_log and each.key != _TRIAL and not each.key.startswith(own):
                    raise InvalidArgument(
                        f"{self._location} has other objects, such as {each.key}: name an empty prefix"
                    )
        await ObjectCoordination(self._objects, "", self._world).try_conditions()
        return has_logs

    async def record_chunks(self, chunks: ChunkLocation) -> None:
        """They can be nowhere else."""

    def make_log(self, index: int, log_id: bytes, owner: bytes) -> S3Log:
        assert self._objects is not None
        log = self._config.s3_log
        options = S3LogOptions(pace=log.pace, pace_bytes=log.pace_bytes, appends_max=log.appends_max)
        return S3Log(self._objects, f"{_LOGS}{index:04d}/", log_id, self._world, options, owner)

    def checkpoints(self, options: CheckpointOptions) -> CheckpointOptions:
        return replace(
            options,
            files_max=_GROUPS_MAX,
            small_file_bytes=_SMALL_GROUP,
            costly_files_max=_COSTLY_GROUPS_MAX,
        )


async def refuse_others(objects: ObjectStore, coordination: Coordination, world: World) -> None:
    """There is no identity: raises if something else is there."""
    calls = RepeatedCalls(objects, world, PATIENCE, DELAYS)

    async def keys_below(prefix: str) -> list[str]:
        return [each.key for each in await calls.list(prefix)]

    if await keys_below(f"{_CHUNKS}{MIGRATION_RECORD}"):
        raise being_moved(coordination.place(""))
    own = f"{_CHUNKS}{STORE_RECORD}"  # of the same store, which another process makes
    await refuse_around_bucket(objects, world, coordination.place, own)
    if await keys_below(_LOGS) or await keys_below(f"{_CHUNKS}{CONTAINERS_PREFIX}"):
        raise DataCorruption(
            "the store's identity is missing although there are logs or chunks of it: put the object back",
            file=coordination.place(IDENTITY),
        )
    if await keys_below(CONTAINERS_PREFIX):
        raise StoreMismatch(
            f"{coordination.place('')} is long-term storage of a store with logs elsewhere: name another "
            f"prefix"
        )
