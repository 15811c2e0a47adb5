"""Two headers that name the same files: the legacy layout's software ended between a join and the source's
deletion (rule S14)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, read_all
from support.legacy_layout import write_files, write_header, write_legacy
from tierlog.actors.legacy_rolling.file_claims import FileClaim, claim_files, file_claim_name
from tierlog.actors.legacy_rolling.header import segment_of_file
from tierlog.actors.legacy_rolling.importing import import_segment
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.storage_backends.base.errors import DataCorruption, InvalidArgument, Unavailable
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, nth

pytestmark = pytest.mark.anyio

TARGET, SOURCE = "app/target", "app/source"
FILES = [f"{TARGET}$offset.0", f"{SOURCE}$offset.0"]
_FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = bytes.fromhex((_FOLDER / "file_claim_v2.hex").read_text())
GOLDEN_WITHOUT_CHECKSUM = bytes.fromhex((_FOLDER / "file_claim_v1.hex").read_text())


async def joined(world: ContainerWorld) -> ContainerWorld:
    """The target's header names the source's file, and the source's header is still there."""
    await world.chunks.open()
    await write_legacy(world.chunks, SOURCE, b"456", max_size=100)
    await write_files(world.chunks, [(FILES[0], b"0123")])
    await write_header(world.chunks, TARGET, f"maxsize=100&0={FILES[0]}&4={FILES[1]}&".encode())
    return world


def beside(world: ContainerWorld) -> ContainerWorld:
    """Another container on the same long-term storage, with a log and records of its own."""
    other = ContainerWorld()
    other.memory, other.chunks, other.store_id = world.memory, world.chunks, world.store_id
    return other


@pytest.mark.parametrize(("first", "second"), [(TARGET, SOURCE), (SOURCE, TARGET)])
async def test_a_file_belongs_to_one_segment_of_all_containers(first: str, second: str) -> None:
    world = await joined(ContainerWorld())
    collector = replace(OPTIONS.collector, delay=0.0)
    # The other one's log is new, and the chain is not.
    eager = replace(OPTIONS, collector=collector, adopt=True, is_built=True)
    async with world.owner(eager, layout=LayoutMode.LAYOUT_UPGRADE) as one:
        length = await import_segment(one.container, first)
        async with beside(world).owner(eager, layout=LayoutMode.LAYOUT_UPGRADE) as other:
            with pytest.raises(InvalidArgument, match=f"were imported as part of '{first}'"):
                await import_segment(other.container, second)
            with pytest.raises(InvalidArgument, match=f"were imported as part of '{first}'"):
                await other.store.read(second, 0, 1)
            assert await other.store.list_segments() == []

        assert len(await read_all(one.store, first)) == length


async def test_an_import_interrupted_after_its_claims_continues() -> None:
    world = await joined(ContainerWorld())
    await claim_files(world.chunks, TARGET, FILES)
    async with world.owner() as owner:
        assert await import_segment(owner.container, TARGET) == 7
        assert await read_all(owner.store, TARGET) == b"0123456"


async def test_a_failed_import_makes_no_claim() -> None:
    world = await joined(ContainerWorld())
    del world.memory.chunks[FILES[1]]
    async with world.owner() as owner:
        with pytest.raises(DataCorruption):
            await import_segment(owner.container, TARGET)
    assert not [name for name in world.memory.chunks if name.startswith("_system/imports/")]


async def test_without_an_answer_about_the_claims_nothing_is_imported() -> None:
    world = await joined(ContainerWorld())
    async with world.owner() as owner:
        world.chunks.script = lambda call: (
            Fault(FaultKind.BEFORE) if call.name.startswith("_system/imports/") else None
        )
        with pytest.raises(Unavailable):
            await import_segment(owner.container, TARGET)
        assert await owner.store.list_segments() == []


def test_a_claim_has_its_golden_bytes() -> None:
    assert FileClaim(SOURCE, TARGET).encode() == GOLDEN
    assert FileClaim.decode(GOLDEN) == FileClaim(SOURCE, TARGET)


def test_a_claim_of_version_1_is_readable() -> None:
    assert FileClaim.decode(GOLDEN_WITHOUT_CHECKSUM) == FileClaim(SOURCE, TARGET, is_checked=False)


@pytest.mark.parametrize("golden", [GOLDEN, GOLDEN_WITHOUT_CHECKSUM], ids=["v2", "v1"])
async def test_s14_a_flipped_bit_in_the_read_of_a_claim_is_corruption_and_no_other_segments_claim(
    golden: bytes,
) -> None:
    """Seed 1000938 of the simulator: the import was refused for good, for a segment that never was."""
    world = await joined(ContainerWorld())
    file = file_claim_name(SOURCE)
    await world.chunks.create_with_content(file, [golden])
    for bit in range(8 * len(golden)):
        world.chunks.script = nth(1, Fault(FaultKind.FLIP, bit=bit), "read")
        with pytest.raises(DataCorruption, match="the claim of the files of 'app/source' is damaged") as got:
            await claim_files(world.chunks, TARGET, FILES[1:])
        assert got.value.file == file

    world.chunks.script = None
    await claim_files(world.chunks, TARGET, FILES[1:])


@pytest.mark.parametrize("read", [1, 2])
async def test_s14_a_claim_without_a_checksum_is_read_twice_before_it_counts_as_ours(read: int) -> None:
    """One flipped bit made app/4arget, which had the file, app/target: it was imported twice."""
    world = await joined(ContainerWorld())
    await world.chunks.create_with_content(file_claim_name(SOURCE), [b"app/source\0app/4arget"])
    world.chunks.script = nth(read, Fault(FaultKind.FLIP, bit=15 * 8 + 6), "read")
    with pytest.raises(DataCorruption, match="damaged"):
        await claim_files(world.chunks, TARGET, FILES[1:])


@pytest.mark.parametrize(
    "content", [b"other\0app/target", b"app/source\0", b"", FileClaim("other", TARGET).encode()]
)
async def test_a_damaged_claim_is_reported(content: bytes) -> None:
    world = await joined(ContainerWorld())
    await world.chunks.create_with_content(file_claim_name(SOURCE), [content])
    with pytest.raises(DataCorruption, match="damaged"):
        await claim_files(world.chunks, TARGET, FILES)


def test_files_belong_to_the_segment_for_which_they_were_made() -> None:
    assert [segment_of_file(name) for name in (*FILES, "plain", "a$offset.1$offset.2")] == [
        TARGET,
        SOURCE,
        "plain",
        "a$offset.1",
    ]
    assert (
        file_claim_name("a").rpartition("/")[0]
        == file_claim_name("a/b").rpartition("/")[0]
        == "_system/imports"
    )
