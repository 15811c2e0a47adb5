"""The store's identity file: bytes, refusals, and two processes that make one folder a store."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import pytest
from msgspec.structs import replace
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles

from tierlog.actors.folder.identity import StoreIdentity, create_identity, decode, encode, read_identity
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch
from tierlog.storage_backends.base.files import IoCall, Link
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio

IDENTITY = StoreIdentity(b"S" * 16, b"L" * 16, 4, 1_700_000_000_000)
GOLDEN = "544c53540001" + "53" * 16 + "4c" * 16 + "00000004" + "0000018bcfe56800" + "dc0ae1bf"


def test_an_identity_has_its_golden_bytes() -> None:
    assert encode(IDENTITY).hex() == GOLDEN
    assert decode(bytes.fromhex(GOLDEN), "store") == IDENTITY


def signed(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "big")


def test_a_newer_format_is_refused_as_such() -> None:
    """Whatever its layout is: only the first six bytes are known."""
    with pytest.raises(StoreMismatch, match="format version 2.*use a newer tierlog"):
        decode(bytes.fromhex(GOLDEN)[:4] + b"\x00\x02" + b"anything", "store")


def test_a_flipped_bit_in_the_version_is_damage_and_no_newer_format() -> None:
    data = bytes.fromhex(GOLDEN)
    for bit in range(16):
        flipped = data[:4] + (int.from_bytes(data[4:6], "big") ^ 1 << bit).to_bytes(2, "big") + data[6:]
        with pytest.raises(DataCorruption, match="damaged"):
            decode(flipped, "store")

    newer = signed(data[:4] + b"\x00\x02" + data[6:-4])
    with pytest.raises(StoreMismatch, match="use a newer tierlog"):
        decode(newer, "store")


@pytest.mark.parametrize("head", [b"NOPE\x00\x01", bytes.fromhex(GOLDEN)[:4] + b"\x00\x00"])
def test_a_file_of_another_kind_is_refused(head: bytes) -> None:
    with pytest.raises(DataCorruption, match="not the identity of a store"):
        decode(signed(head + bytes.fromhex(GOLDEN)[6:-4]), "store")


def test_every_container_has_a_log_id_of_its_own() -> None:
    ids = {IDENTITY.container_log_id(container) for container in range(4)}

    assert len(ids) == 4
    assert all(len(log_id) == 16 for log_id in ids)


async def test_an_identity_is_created_and_read(tmp_path: Path) -> None:
    folder = f"{tmp_path}/wal"
    files = LocalFiles()

    assert await files.run(read_identity(folder)) is None
    assert await files.run(create_identity(folder, IDENTITY, "new-1")) == IDENTITY
    assert await files.run(read_identity(folder)) == IDENTITY
    assert [path.name for path in Path(folder).iterdir()] == ["store"]


async def test_of_two_creators_one_wins_and_both_know_it(tmp_path: Path) -> None:
    """The file appears whole or not at all: it is linked after it was synced."""
    folder = f"{tmp_path}/wal"
    files = LocalFiles().lane("creators", 4)
    found: list[StoreIdentity] = []

    async def create(number: int) -> None:
        mine = replace(IDENTITY, store_id=bytes([number]) * 16)
        found.append(await files.run(create_identity(folder, mine, f"new-{number}")))

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(create, number)

    assert len(found) == 4
    assert len(set(found)) == 1
    assert [path.name for path in Path(folder).iterdir()] == ["store"]


async def test_a_creator_that_lost_the_race_returns_the_winners_identity() -> None:
    disk, won = SimulatedDisk(Random(0)), list[str]()

    def win(index: int, call: IoCall) -> None:
        if isinstance(call, Link):
            disk.link(call.source, call.target)
            disk.unlink(call.source)
            won.append(call.target)

    assert await SimulatedFiles(disk, win).run(create_identity("/data/wal", IDENTITY, "new-1")) == IDENTITY
    assert won == ["/data/wal/store"]
    assert set(disk.folder("/data/wal").names) == {"store"}


async def test_logs_without_an_identity_are_refused(tmp_path: Path) -> None:
    """A new identity would make the old logs another store's."""
    (tmp_path / "0000").mkdir()
    with pytest.raises(DataCorruption, match="missing although there are logs") as refused:
        await LocalFiles().run(read_identity(str(tmp_path)))

    assert refused.value.file == f"{tmp_path}/store"


async def test_other_files_in_the_folder_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "owners").mkdir()
    (tmp_path / "0000").write_bytes(b"")

    assert await LocalFiles().run(read_identity(str(tmp_path))) is None


async def test_a_damaged_file_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(encode(IDENTITY) + b"more")
    with pytest.raises(DataCorruption) as refused:
        await LocalFiles().run(read_identity(str(tmp_path)))

    assert refused.value.file == f"{tmp_path}/store"
