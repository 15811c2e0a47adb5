"""Claims in long-term storage (rule W8): names, bytes, judgement, and who gets one."""

from __future__ import annotations

import anyio
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.container_world import MIB, ContainerWorld, referenced_chunks, virtual_time
from tierlog.actors.container.claims import (
    Claim,
    ClaimRecords,
    Identity,
    StorageClaim,
    claim_name,
    claim_prefix,
    create_claim,
    decode_claim,
    encode_claim,
    find_foreign_claims,
    list_claims,
    validate_claims,
)
from tierlog.actors.folder.fingerprint import Fingerprint
from tierlog.journal.log.memory import MemoryLogService
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import (
    ClaimOutdated,
    DataCorruption,
    NotOwner,
    StoreMismatch,
    Unavailable,
)
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.segments.memory_store import MemoryMetadataState, MemoryMetadataStore
from tierlog.storage_backends.segments.records.claim import claim_key
from tierlog.storage_backends.segments.records.unconfirmed import (
    UNCONFIRMED_KEY,
    Reason,
    UnconfirmedRecord,
)
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

US = Identity(b"S" * 16, b"L" * 16, b"O" * 16)
NEXT_OWNER = attrs.evolve(US, owner=b"P" * 16)
CLONE = attrs.evolve(US, log=b"M" * 16)
STRANGER = attrs.evolve(US, store=b"T" * 16)

HERE, THERE = Fingerprint(b"F" * 16, "here:/data/wal"), Fingerprint(b"G" * 16, "there:/copy/wal")
IDS = "53" * 16 + "4c" * 16 + "4f" * 16
GOLDEN = "544c434d02" + IDS + "46" * 16 + "000e" + b"here:/data/wal".hex() + "36f5ad2f"
GOLDEN_V1 = "544c434d01" + IDS + "7730690f"


def test_a_claim_has_its_golden_bytes_and_name() -> None:
    here = attrs.evolve(US, folder=HERE)
    assert encode_claim(here).hex() == GOLDEN
    assert decode_claim(bytes.fromhex(GOLDEN), 7) == Claim(7, here)
    assert claim_name(3, 0x1F) == "_system/containers/0003/epoch.000000000000001f"


def test_a_claim_of_version_1_has_no_fingerprint() -> None:
    assert decode_claim(bytes.fromhex(GOLDEN_V1), 7) == Claim(7, US, has_record=False)


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
    """W8: the folder is a copy or an old backup. Claims of version 1 have no records, and are judged by their
    epochs; what is below the lowest record was known once, and its owner stops by itself."""
    owners = {epoch: identity.owner for epoch, identity in known.items()}
    assert [claim.epoch for claim in find_foreign_claims(claims, owners, 3, US)] == foreign


@pytest.mark.parametrize("known", [{}, {1: STRANGER.owner}, {5: US.owner}])
def test_another_stores_claim_is_always_refused(known: dict[int, bytes]) -> None:
    with pytest.raises(StoreMismatch, match=r"its own folder or S3 prefix.*restore a backup"):
        find_foreign_claims([Claim(1, STRANGER)], known, 3, US)


def test_a_refusal_says_who_claimed_and_what_to_do() -> None:
    with pytest.raises(
        StoreMismatch, match=r"epoch 4 by there:/copy/wal.*adopt=True.*`tierlog serve --adopt`"
    ):
        validate_claims([Claim(4, attrs.evolve(US, folder=THERE))], {3: US.owner}, 3, US)


def no_records() -> ClaimRecords:
    state = MemoryMetadataState()
    return ClaimRecords(state.entries, MemoryMetadataStore(state))


async def open_chunks(state: MemoryChunkState) -> MemoryChunkStorage:
    chunks = MemoryChunkStorage(state)
    await chunks.open()
    return chunks


@pytest.mark.anyio
async def test_records_of_claims_go_from_the_lowest_up() -> None:
    """W8: what is below the lowest record was known, so a gap must not open above a claim that is there."""
    records = no_records()
    await records.enter(dict.fromkeys((1, 2, 3, 4), US.owner), UnconfirmedRecord(Reason.MOVED))
    await records.forget([2, 3])
    assert list(records.known) == [1, 2, 3, 4]
    await records.forget([1, 2])
    assert list(records.known) == [3, 4]
    assert records.unconfirmed == UnconfirmedRecord(Reason.MOVED)


@pytest.mark.anyio
async def test_records_are_found_again_in_the_metadata() -> None:
    state = MemoryMetadataState()
    written = ClaimRecords(state.entries, MemoryMetadataStore(state))
    await written.enter({7: US.owner}, UnconfirmedRecord(Reason.ADOPTED, "there:/copy/wal"))
    read = ClaimRecords(state.entries, MemoryMetadataStore(state))

    assert read.known == {7: US.owner}
    assert read.unconfirmed == UnconfirmedRecord(Reason.ADOPTED, "there:/copy/wal")
    await read.confirm()
    await read.confirm()
    assert (written.unconfirmed, list(state.entries)) == (None, [claim_key(7)])


@pytest.mark.anyio
async def test_g4_two_confirmations_at_once_are_one() -> None:
    world = ContainerWorld()
    await world.chunks.open()
    async with world.owner() as owner:
        claims = owner.container.claims
        await claims.enter({}, UnconfirmedRecord(Reason.RESTORED))
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(claims.confirm)

        assert claims.unconfirmed is None


@pytest.mark.parametrize("key", [claim_key(7), UNCONFIRMED_KEY])
def test_a_record_that_cannot_be_read_is_corruption(key: str) -> None:
    state = MemoryMetadataState()
    state.entries[key] = (1, b"\7\2")
    records = ClaimRecords(state.entries, MemoryMetadataStore(state))
    with pytest.raises(DataCorruption):
        assert records.known, records.unconfirmed


@pytest.mark.anyio
async def test_an_epoch_is_claimed_once() -> None:
    state = MemoryChunkState()
    chunks = await open_chunks(state)

    assert await create_claim(chunks, 0, 5, US)
    assert await create_claim(chunks, 0, 5, US), "its own claim, after a lost reply"
    assert not await create_claim(chunks, 0, 5, NEXT_OWNER)
    assert await create_claim(chunks, 0, 6, NEXT_OWNER)
    assert await create_claim(chunks, 1, 5, NEXT_OWNER), "each container has its own"


@pytest.mark.anyio
@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("epoch", [5, 6])
async def test_a_late_claim_is_fenced_after_a_successor_and_a_mismatch_for_a_copy(
    epoch: int, adopt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor fenced the log before it claimed. A copy's log was never fenced."""
    chunks = await open_chunks(MemoryChunkState())
    await create_claim(chunks, 0, epoch, NEXT_OWNER)
    log = MemoryLogService().log("c0")
    claim = StorageClaim(chunks, 0, US, log, no_records(), adopt=adopt)
    claim.epoch = 5
    fenced = [None, NotOwner("a newer owner has the log")]

    def check_owner() -> None:
        if error := fenced.pop(0):
            raise error

    monkeypatch.setattr(log, "check_owner", check_owner)
    with pytest.raises(NotOwner):
        await claim.ensure()
    monkeypatch.setattr(log, "check_owner", lambda: None)
    if epoch == 6 and adopt:
        with pytest.raises(ClaimOutdated, match="epoch 6, above 5"):
            await claim.ensure()
        assert [claim.epoch for claim in await list_claims(chunks, 0)] == [6]
        return

    with pytest.raises(StoreMismatch, match="--adopt"):
        await claim.ensure()


@virtual_time
@pytest.mark.anyio
async def test_w8_a_flush_that_takes_long_finds_a_copy_of_its_folder() -> None:
    """The proof at the begin of the cycle covered a flush of any length."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await owner.store.create_segment("slow")
        for _ in range(2):
            await owner.store.append("slow", bytes(4 * MIB))
        world.chunks.script = lambda call: (
            Fault(FaultKind.DELAY, seconds=1.0) if call.verb == "create_with_content" else None
        )
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:

            async def flush() -> None:
                with pytest.raises(Unavailable):
                    await owner.store.flush()

            tasks.start_soon(flush)
            await anyio.sleep(1)
            copy = attrs.evolve(owner.container._claim.identity, owner=b"c" * 16)
            await create_claim(world.chunks.inner, 0, 9, copy)
        assert isinstance(owner.error, StoreMismatch)
        assert 60 < anyio.current_time() - began < 70, "before the second write, after 64 chunks"


@pytest.mark.anyio
async def test_the_claims_of_a_container_are_listed_in_order() -> None:
    chunks = await open_chunks(MemoryChunkState())
    for epoch, identity in ((16, NEXT_OWNER), (9, US)):
        await create_claim(chunks, 2, epoch, identity)
    await create_claim(chunks, 3, 99, US)

    assert await list_claims(chunks, 2) == [Claim(9, US), Claim(16, NEXT_OWNER)]
    assert await list_claims(chunks, 2, known={claim_name(2, 9)}) == [Claim(16, NEXT_OWNER)]
    assert await list_claims(chunks, 4) == []


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["zz", "0000000000000001"])
async def test_a_claim_that_cannot_be_read_is_corruption(name: str) -> None:
    chunks = await open_chunks(MemoryChunkState())
    await chunks.create_with_content(claim_prefix(0) + name, [b"not a claim"])
    with pytest.raises(DataCorruption) as refused:
        await list_claims(chunks, 0)

    assert refused.value.file == claim_prefix(0) + name


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.AFTER, FaultKind.LOST])
async def test_an_owner_whose_claim_got_no_answer_claims_again_before_its_first_write(
    kind: FaultKind,
) -> None:
    """An opening that gave up would make another claim each time, and serve nobody meanwhile."""
    world = ContainerWorld()
    await world.chunks.open()
    world.chunks.script = lambda call: Fault(kind) if call.verb == "create_with_content" else None
    async with world.owner() as owner:
        await owner.store.create_segment("a")
        await owner.store.append("a", b"data")
        assert owner.container.state.epoch == 1

        world.chunks.script = None
        await owner.store.flush()
        assert await list_claims(world.chunks, owner.container.index) == [
            Claim(1, owner.container._claim.identity)
        ]
        assert referenced_chunks(owner.container)
