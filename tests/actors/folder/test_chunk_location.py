"""Where the chunks are is recorded durably before the folder is a store."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import attrs
import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import Fail, Fault, SimulatedFiles

from support.virtual import virtual_world
from tierlog.actors.folder.chunk_location import ChunkLocation, recorded_location, resolve_location
from tierlog.actors.folder.identity import StoreIdentity, create_identity
from tierlog.actors.folder.paths import StoreFolder
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.storage_backends.base.errors import DataCorruption, Unavailable
from tierlog.storage_backends.base.files import IoCall, SyncFolder
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio

FOLDER = StoreFolder("/data")
IN_A_BUCKET = attrs.evolve(StoreConfig(), chunks="s3://bucket/stores")
GOLDEN = b"""# Where the chunks of this store are. Fixed; `tierlog` writes it.
chunks = "s3://bucket/stores"
endpoint = ""
region = ""
append = false
"""
"""A record of earlier versions, which wrote no checksum."""


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


async def test_a_flipped_bit_in_the_record_is_damage_and_no_other_location(tmp_path: Path) -> None:
    """Chunks would be written to another bucket, and the store's own would be missing there."""
    files, folder, path = LocalFiles(), StoreFolder(str(tmp_path)), tmp_path / "wal" / "chunks"
    await resolve_location(files, folder, IN_A_BUCKET, virtual_world(1))
    data = path.read_bytes()
    assert (await recorded_location(files, folder)).chunks == IN_A_BUCKET.chunks

    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        # Where the checksum itself cannot be found any more, everything else is whole.
        with suppress(DataCorruption):
            assert (await recorded_location(files, folder)).chunks == IN_A_BUCKET.chunks, bit


async def test_a_record_without_a_checksum_is_readable(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "chunks").write_bytes(GOLDEN)
    found = await recorded_location(LocalFiles(), StoreFolder(str(tmp_path)))
    assert found == ChunkLocation("s3://bucket/stores")


async def test_a_record_that_is_too_long_is_damage_and_is_not_read(tmp_path: Path) -> None:
    """More than the machine has memory."""
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "chunks").write_bytes(GOLDEN)
    os.truncate(tmp_path / "wal" / "chunks", 1 << 40)
    with pytest.raises(DataCorruption, match="too long"):
        await recorded_location(LocalFiles(), StoreFolder(str(tmp_path)))
