"""Claims of earlier versions in long-term storage (rule J12): names, bytes, judgement, and how a folder with
claims is brought over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, cloned, read_all, reason_of, refusal_of
from support.stores import make
from tierlog.actors.container.claims import (
    LAST_EPOCH,
    Claim,
    claim_name,
    claim_prefix,
    decode_claim,
    encode_claim,
    find_foreign_claims,
    list_claims,
)
from tierlog.actors.container.owner import Identity
from tierlog.actors.folder.fingerprint import Fingerprint
from tierlog.journal.manifest.chain import element_name
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunk, MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.segments.records.claim import ClaimRecord, claim_key
from tierlog.storage_backends.segments.records.unconfirmed import Reason
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, every

US = Identity(b"S" * 16, b"L" * 16, b"O" * 16)
NEXT_OWNER = replace(US, owner=b"P" * 16)
CLONE = replace(US, log=b"M" * 16)
STRANGER = replace(US, store=b"T" * 16)

HERE = Fingerprint(b"F" * 16, "here:/data/wal")
IDS = "53" * 16 + "4c" * 16 + "4f" * 16
LOCATION = "46" * 16 + "000e" + b"here:/data/wal".hex()
LAST = "544c434d03" + IDS + LOCATION + "988ef08b"
GOLDEN = "544c434d02" + IDS + LOCATION + "36f5ad2f"
GOLDEN_V1 = "544c434d01" + IDS + "7730690f"


def claim_of(identity: Identity) -> bytes:
    """A claim as versions before the chain wrote it."""
    last = encode_claim(identity)
    body = last[:4] + b"\2" + last[5:-4]
    return body + crc32c(body).to_bytes(4, "big")


def test_a_claim_has_its_golden_bytes_and_name() -> None:
    here = replace(US, folder=HERE)
    assert claim_of(here).hex() == GOLDEN
    assert decode_claim(bytes.fromhex(GOLDEN), 7) == Claim(7, here)
    assert claim_name(3, 0x1F) == "_system/containers/0003/epoch.000000000000001f"


def test_a_claim_of_version_1_has_no_fingerprint() -> None:
    assert decode_claim(bytes.fromhex(GOLDEN_V1), 7) == Claim(7, US, has_record=False)


def test_the_last_claim_has_golden_bytes_that_earlier_code_refuses() -> None:
    """Earlier code reads versions 1 and 2."""
    assert encode_claim(replace(US, folder=HERE)).hex() == LAST
    with pytest.raises(DecodeError, match="not a claim of a version"):
        decode_claim(bytes.fromhex(LAST))


@pytest.mark.parametrize("golden", [GOLDEN_V1, GOLDEN])
@given(position=st.integers(0, 88), mask=st.integers(1, 255))
def test_a_damaged_claim_is_refused(golden: str, position: int, mask: int) -> None:
    data = bytearray.fromhex(golden)
    data[position % len(data)] ^= mask
    with pytest.raises(DecodeError):
        decode_claim(bytes(data))


OLD = {"has_record": False}


@pytest.mark.parametrize(
    ("claims", "known", "foreign"),
    [
        ([], {}, []),
        ([Claim(1, US), Claim(3, NEXT_OWNER)], {1: US, 3: NEXT_OWNER}, []),
        ([Claim(4, US)], {3: US}, [4]),
        ([Claim(3, NEXT_OWNER)], {3: US}, [3]),
        ([Claim(1, US), Claim(2, NEXT_OWNER)], {1: US}, [2]),
        ([Claim(2, CLONE)], {1: US}, [2]),
        ([Claim(2, CLONE)], {1: US, 2: CLONE}, []),
        ([Claim(2, NEXT_OWNER), Claim(2, CLONE)], {3: US}, []),
        ([Claim(1, US)], {}, [1]),
        ([Claim(3, US, **OLD)], {}, []),
        ([Claim(4, US, **OLD)], {}, [4]),
        ([Claim(3, CLONE, **OLD)], {}, [3]),
        ([Claim(3, US, **OLD)], {5: US}, []),
    ],
)
def test_a_claim_without_a_record_in_the_log_is_foreign(
    claims: list[Claim], known: dict[int, Identity], foreign: list[int]
) -> None:
    """The folder is a copy or an old backup. Claims of version 1 have no records, and are compared by their
    epochs; what is below the lowest record was known once, and its owner stops by itself."""
    owners = {epoch: identity.owner for epoch, identity in known.items()}
    assert [claim.epoch for claim in find_foreign_claims(claims, owners, 3, US)] == foreign


@pytest.mark.parametrize("known", [{}, {1: STRANGER.owner}, {5: US.owner}])
def test_another_stores_claim_is_always_refused(known: dict[int, bytes]) -> None:
    with pytest.raises(StoreMismatch, match=r"its own folder or S3 prefix.*restore a backup"):
        find_foreign_claims([Claim(1, STRANGER)], known, 3, US)


async def open_chunks(state: MemoryChunkState) -> MemoryChunkStorage:
    chunks = MemoryChunkStorage(state)
    await chunks.open()
    return chunks


@pytest.mark.anyio
async def test_the_claims_of_a_container_are_listed_in_order_without_the_last() -> None:
    chunks = await open_chunks(MemoryChunkState())
    for epoch, identity in ((16, NEXT_OWNER), (9, US)):
        await chunks.create_with_content(claim_name(2, epoch), [claim_of(identity)])
    await chunks.create_with_content(claim_name(2, LAST_EPOCH), [encode_claim(US)])
    await chunks.create_with_content(claim_name(3, 99), [claim_of(US)])

    assert await list_claims(chunks, 2) == [Claim(9, US), Claim(16, NEXT_OWNER)]
    assert await list_claims(chunks, 4) == []


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["zz", "0000000000000001"])
async def test_a_claim_that_cannot_be_read_is_corruption(name: str) -> None:
    chunks = await open_chunks(MemoryChunkState())
    await chunks.create_with_content(claim_prefix(0) + name, [b"not a claim"])
    with pytest.raises(DataCorruption) as refused:
        await list_claims(chunks, 0)

    assert refused.value.file == claim_prefix(0) + name


# --- folders that are brought over ---------------------------------------------------------------


async def folder_of_an_earlier_version(epoch: int = 1) -> ContainerWorld:
    """A store with a segment, whose owner recorded a claim and made it."""
    world = ContainerWorld()
    world.chunks.script = lambda call: Fault(FaultKind.BEFORE)  # so that nothing is known of a chain
    async with world.owner(replace(OPTIONS, is_built=True)) as owner:
        await make(owner.store, "s", b"abc")
        identity = owner.container.ownership.identity
        record = ClaimRecord(identity.owner, storage_claimed=True)
        await owner.container.metadata.commit({claim_key(epoch): 0}, {claim_key(epoch): record.encode()})
    world.chunks.script = None
    await world.chunks.create_with_content(claim_name(0, epoch), [claim_of(identity)])
    return world


def system_objects(world: ContainerWorld) -> list[str]:
    prefix = "_system/containers/0000/"
    return [name.removeprefix(prefix) for name in world.memory.chunks if name.startswith(prefix)]


@pytest.mark.anyio
async def test_a_folder_that_is_brought_over_leaves_the_last_claim_and_no_other() -> None:
    """J12."""
    world = await folder_of_an_earlier_version()
    for elements in ((1, 2), (2, 3)):
        async with world.owner() as owner:
            assert owner.container.confirmation.unconfirmed is None
            assert await read_all(owner.store, "s") == b"abc"
            if elements == (1, 2):
                await owner.store.flush()
        journal = [f"journal/{n:016x}" for n in elements]
        found = [name for name in system_objects(world) if not name.startswith("runs/")]
        assert found == [f"epoch.{LAST_EPOCH:016x}", *journal]


@pytest.mark.anyio
async def test_claims_that_could_not_be_deleted_are_deleted_later() -> None:
    """J12: with a later element, or by a later owner."""
    world = await folder_of_an_earlier_version()
    world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
    for _ in range(2):
        async with world.owner() as owner:
            await owner.store.flush()
    assert "epoch.0000000000000001" in system_objects(world)
    world.chunks.script = None
    async with world.owner():
        assert "epoch.0000000000000001" not in system_objects(world)


@pytest.mark.anyio
async def test_an_owner_of_this_version_opens_above_the_claims_of_earlier_ones() -> None:
    world = await folder_of_an_earlier_version(epoch=9)
    async with world.owner() as owner:
        assert owner.container.state.epoch == 10


@pytest.mark.anyio
@pytest.mark.parametrize("adopt", [False, True])
async def test_a_foreign_claim_of_an_earlier_version_is_a_copys(adopt: bool) -> None:
    """J12: the refusal leaves nothing, so that the other folder can still be opened by its own version."""
    world = await folder_of_an_earlier_version()
    other = Identity(world.store_id, b"l" * 16, b"x" * 16, Fingerprint(b"g" * 16, "there:/copy/wal"))
    await world.chunks.create_with_content(claim_name(0, 5), [claim_of(other)])
    if not adopt:
        refusal = await refusal_of(world)
        assert isinstance(refusal, StoreMismatch)
        assert "in epoch 5 by there:/copy/wal" in str(refusal)
        assert system_objects(world) == [f"epoch.{epoch:016x}" for epoch in (1, 5)]
        return

    async with world.owner(replace(OPTIONS, adopt=True)) as owner:
        record = owner.container.confirmation.unconfirmed
        assert record is not None
        assert (record.reason, record.location) == (Reason.ADOPTED, "there:/copy/wal")
        assert owner.container.state.epoch == 6


@pytest.mark.anyio
async def test_a_claim_that_an_earlier_version_makes_meanwhile_is_found() -> None:
    """J12: the copy listed the claims before the last one was there, and claims after that."""
    world = await folder_of_an_earlier_version()
    other = Identity(world.store_id, b"l" * 16, b"x" * 16)

    def script(call: Call) -> None:
        if call.name == claim_name(0, LAST_EPOCH) and call.verb == "create_with_content":
            world.memory.chunks[claim_name(0, 5)] = MemoryChunk(bytearray(claim_of(other)))

    world.chunks.script = script
    assert isinstance(await refusal_of(world), StoreMismatch)
    assert element_name(0, 1) not in world.memory.chunks


@pytest.mark.anyio
async def test_a_folder_of_an_earlier_version_flushes_nothing_to_storage_without_its_claims() -> None:
    """J12: it is not mounted."""
    world = await folder_of_an_earlier_version()
    world.memory.chunks.clear()
    async with world.owner() as owner:
        with pytest.raises(Unavailable, match="long-term storage is empty"):
            await owner.store.flush()
        assert not world.memory.chunks


@pytest.mark.anyio
async def test_a_copy_from_before_a_folder_was_brought_over_is_refused_until_it_is_adopted() -> None:
    """J6, J12: long-term storage has elements and no claims; it is not empty, but another history's."""
    world = await folder_of_an_earlier_version()
    copy = cloned(world.logs)
    async with world.owner() as owner:
        await owner.store.append("s", b"more")
        await owner.store.flush()

    world.logs = copy
    assert isinstance(await refusal_of(world), StoreMismatch)
    async with world.owner(replace(OPTIONS, adopt=True)) as owner:
        assert reason_of(owner) is Reason.ADOPTED
        assert await read_all(owner.store, "s") == b"abc"
    assert await refusal_of(world) is None
