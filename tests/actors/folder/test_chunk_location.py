"""Where the chunks are is recorded durably before the folder is a store."""

from __future__ import annotations

import errno
from random import Random

import attrs
import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import Fail, Fault, SimulatedFiles

from support.virtual import virtual_world
from tierlog.actors.folder.chunk_location import recorded_location, resolve_location
from tierlog.actors.folder.identity import StoreIdentity, create_identity
from tierlog.actors.folder.paths import StoreFolder
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.base.files import IoCall, SyncFolder

pytestmark = pytest.mark.anyio

FOLDER = StoreFolder("/data")
IN_A_BUCKET = attrs.evolve(StoreConfig(), chunks="s3://bucket/stores")


@pytest.mark.parametrize("seed", range(4))
async def test_w11_a_record_whose_name_a_failed_sync_lost_is_written_again(seed: int) -> None:
    disk = SimulatedDisk(Random(seed))

    def fail(index: int, call: IoCall) -> Fault | None:
        is_hit = isinstance(call, SyncFolder) and call.path == FOLDER.wal
        return Fail(OSError(errno.EIO, "the sync failed")) if is_hit else None

    with pytest.raises(Unavailable):
        await resolve_location(SimulatedFiles(disk, fail), FOLDER, IN_A_BUCKET, virtual_world(1))
    files = SimulatedFiles(disk)
    await resolve_location(files, FOLDER, IN_A_BUCKET, virtual_world(2))
    await files.run(create_identity(FOLDER.wal, StoreIdentity(b"S" * 16, b"L" * 16, 1, 0), "new-1"))

    after = await recorded_location(SimulatedFiles(disk.crash("none")), FOLDER)
    assert after.chunks == IN_A_BUCKET.chunks
