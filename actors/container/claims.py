"""The claim: an owner's mark in long-term storage, made before its first write there (rule W8).

Owns: names, encoding and judgement of claims. The log makes an epoch unique among those who share the log; a
copied folder, a restored machine or two folders on one bucket do not share it. So every owner
creates ``_system/containers/<c>/epoch.<E>`` conditionally, and one that finds a claim above its own log's
history, or of another store, knows that it is a clone and stops.

Layout of a claim: ``magic u32, version u8, store id 16 bytes, log id 16 bytes, owner id 16 bytes, CRC32C
u32``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder, hex_number
from ...storage_backends.base.errors import ChunkExists, DataCorruption, StoreMismatch

_MAGIC = 0x544C434D  # "TLCM"
_VERSION = 1
_BODY_BYTES = 4 + 1 + 3 * 16 + 4


@attrs.frozen
class Identity:
    """Who an owner is: the store, its log, and this very opening; 16 bytes each."""

    store: bytes
    log: bytes
    owner: bytes


@attrs.frozen
class Claim:
    epoch: int
    identity: Identity


def claim_prefix(container: int) -> str:
    return f"_system/containers/{container:04d}/epoch."


def claim_name(container: int, epoch: int) -> str:
    return f"{claim_prefix(container)}{epoch:016x}"


def encode_claim(identity: Identity) -> bytes:
    body = (
        Encoder().u32(_MAGIC).u8(_VERSION).raw(identity.store).raw(identity.log).raw(identity.owner).finish()
    )
    return Encoder().raw(body).u32(crc32c(body)).finish()


def decode_claim(data: bytes) -> Identity:
    if len(data) != _BODY_BYTES or crc32c(data[:-4]) != int.from_bytes(data[-4:], "big"):
        raise DecodeError(f"a claim of {len(data)} bytes is damaged")

    fields = Decoder(data)
    magic, version = fields.u32(), fields.u8()
    if magic != _MAGIC or version != _VERSION:
        raise DecodeError(f"not a claim of a version this code knows: {magic:#x}, {version}")

    return Identity(bytes(fields.raw(16)), bytes(fields.raw(16)), bytes(fields.raw(16)))


async def survey(chunks: ChunkStorage, container: int) -> list[Claim]:
    """All claims on a container, lowest epoch first."""
    prefix = claim_prefix(container)
    claims = []
    for info in [info async for info in chunks.list(prefix)]:
        try:
            claims.append(
                Claim(
                    hex_number(info.name[len(prefix) :]),
                    decode_claim(await chunks.read(info.name, 0, _BODY_BYTES + 1)),
                )
            )
        except DecodeError as error:
            raise DataCorruption(f"claim {info.name} cannot be read: {error}", file=info.name) from error

    return sorted(claims, key=lambda claim: claim.epoch)


def judge(claims: Sequence[Claim], history_epoch: int, identity: Identity) -> None:
    """Raise ``StoreMismatch`` if these claims cannot be of this log's own past."""
    for claim in claims:
        if claim.identity.store != identity.store:
            raise StoreMismatch(
                f"the long-term storage belongs to store {claim.identity.store.hex()}, this folder to "
                f"{identity.store.hex()}: "
                f"give each store its own place"
            )

        if claim.epoch > history_epoch or claim.identity.log != identity.log:
            raise StoreMismatch(
                f"long-term storage was claimed with epoch {claim.epoch}, which this log (up to epoch "
                f"{history_epoch}) never had: "
                f"the folder is a copy or an old backup. Open the newest one, or adopt this one on purpose "
                f"(adopt=True, --adopt)"
            )


async def place(chunks: ChunkStorage, container: int, epoch: int, identity: Identity) -> bool:
    """Create the claim of ``epoch``; False if somebody else holds it."""
    name = claim_name(container, epoch)
    body = encode_claim(identity)
    try:
        await chunks.create_with_content(name, [body])
    except ChunkExists:
        return await chunks.read(name, 0, _BODY_BYTES + 1) == body

    return True


async def claim_late(
    chunks: ChunkStorage,
    container: int,
    epoch: int,
    identity: Identity,
    check_owner: Callable[[], None],
    *,
    adopt: bool,
) -> None:
    """Claim for an owner that could not when it opened its log (W8). ``check_owner()`` raises ``NotOwner`` if
    a newer one has the log."""
    check_owner()
    try:
        if not adopt:
            judge(await survey(chunks, container), epoch, identity)
        if not await place(chunks, container, epoch, identity):
            raise StoreMismatch(
                f"epoch {epoch} of container {container} was claimed by another owner, which this log never "
                f"had: the folder "
                f"is a copy or has one. Keep the newest one, or adopt this one on purpose (adopt=True, "
                f"--adopt)"
            )
    except StoreMismatch:
        # A successor that came while this one looked is no stranger: the log knows it, and it fenced the log
        # before it claimed.
        check_owner()
        raise
