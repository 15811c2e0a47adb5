"""Claims in long-term storage (rule W8): names, bytes, judgement, and who gets one."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.container_world import ContainerWorld, referenced_chunks
from tierlog.actors.container.claims import (
    Claim,
    Identity,
    StorageClaim,
    claim_name,
    claim_prefix,
    create_claim,
    decode_claim,
    encode_claim,
    list_claims,
    validate_claims,
)
from tierlog.journal.log.memory import MemoryLogService
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import DataCorruption, NotOwner, StoreMismatch
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

US = Identity(b"S" * 16, b"L" * 16, b"O" * 16)
NEXT_OWNER = attrs.evolve(US, owner=b"P" * 16)
CLONE = attrs.evolve(US, log=b"M" * 16)
STRANGER = attrs.evolve(US, store=b"T" * 16)

GOLDEN = "544c434d01" + "53" * 16 + "4c" * 16 + "4f" * 16 + "7730690f"


def test_a_claim_has_its_golden_bytes_and_name() -> None:
    assert encode_claim(US).hex() == GOLDEN
    assert decode_claim(bytes.fromhex(GOLDEN)) == US
    assert claim_name(3, 0x1F) == "_system/containers/0003/epoch.000000000000001f"


@given(st.binary(max_size=80))
def test_any_bytes_give_a_claim_or_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_claim(data)


@given(st.integers(0, 56), st.integers(1, 255))
def test_a_damaged_claim_is_refused(place: int, mask: int) -> None:
    data = bytearray.fromhex(GOLDEN)
    data[place] ^= mask
    with pytest.raises(DecodeError):
        decode_claim(bytes(data))


@pytest.mark.parametrize(
    ("claims", "history", "refused"),
    [
        ([], 0, False),
        ([Claim(1, US), Claim(3, NEXT_OWNER)], 3, False),
        ([Claim(4, US)], 3, True),
        ([Claim(1, US), Claim(4, NEXT_OWNER)], 3, True),
        ([Claim(2, CLONE)], 3, True),
        ([Claim(1, STRANGER)], 3, True),
        ([Claim(1, US)], 0, True),
    ],
)
def test_claims_above_the_logs_history_or_of_others_are_refused(
    claims: list[Claim], history: int, refused: bool
) -> None:
    """W8: the folder is a copy, an old backup, or of another store."""
    if refused:
        with pytest.raises(StoreMismatch):
            validate_claims(claims, history, US)
    else:
        validate_claims(claims, history, US)


def test_a_refusal_explains_what_to_do() -> None:
    with pytest.raises(StoreMismatch, match="give each store its own folder or S3 prefix"):
        validate_claims([Claim(1, STRANGER)], 3, US)
    with pytest.raises(StoreMismatch, match="--adopt"):
        validate_claims([Claim(4, US)], 3, US)


async def open_chunks(state: MemoryChunkState) -> MemoryChunkStorage:
    chunks = MemoryChunkStorage(state)
    await chunks.open()
    return chunks


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
    claim = StorageClaim(chunks, 0, US, log, adopt=adopt)
    claim.epoch = 5
    fenced = [None, NotOwner("a newer owner has the log")]

    def check_owner() -> None:
        if error := fenced.pop(0):
            raise error

    monkeypatch.setattr(log, "check_owner", check_owner)
    if epoch == 6 and adopt:
        await claim.ensure()
        return

    with pytest.raises(NotOwner):
        await claim.ensure()
    monkeypatch.setattr(log, "check_owner", lambda: None)
    with pytest.raises(StoreMismatch, match="--adopt"):
        await claim.ensure()


@pytest.mark.anyio
async def test_the_claims_of_a_container_are_listed_in_order() -> None:
    chunks = await open_chunks(MemoryChunkState())
    for epoch, identity in ((16, NEXT_OWNER), (9, US)):
        await create_claim(chunks, 2, epoch, identity)
    await create_claim(chunks, 3, 99, US)

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
