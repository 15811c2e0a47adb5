"""Claims of earlier versions on long-term storage, and the last one, which keeps those versions out (rule
J12).

An owner of an earlier version claimed ``_system/containers/<c>/epoch.<E>`` conditionally, after a record of
that claim was durable in its log. A claim that the log has no record of is foreign: the folder is a copy or
an old backup, or a copy of it was opened.

Layout of a claim: ``magic u32, version u8, store id 16 bytes, log id 16 bytes, owner id 16 bytes``; in
version 2 the folder's fingerprint, 16 bytes, and its location as text; ``CRC32C u32``. Earlier code refuses
version 3, which has the layout of version 2.

Crash: the last claim may exist before the first element; the next owner goes on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ...journal.manifest.element import CONTAINERS_PREFIX
from ...journal.manifest.store_record import other_store
from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder, hex_number
from ...storage_backends.base.errors import ChunkExists, ChunkNotFound, DataCorruption
from ...storage_backends.base.ids import EPOCH_MAX
from ..folder.fingerprint import FINGERPRINT_BYTES, LOCATION_BYTES_MAX, Fingerprint
from .owner import Identity

_MAGIC = 0x544C434D  # "TLCM"
_WITHOUT_FINGERPRINT, _WITH_FINGERPRINT, _LAST = 1, 2, 3
_BYTES_MAX = 4 + 1 + 4 * 16 + 2 + LOCATION_BYTES_MAX + 4
LAST_EPOCH = (1 << 64) - 1
"""The epoch of the last claim, which a folder of this version leaves."""


class Claim(Struct, frozen=True):
    epoch: int
    identity: Identity
    has_record: bool = True
    """Whether its owner wrote a record of it first; False for claims of version 1."""


def claim_prefix(container: int) -> str:
    return f"{CONTAINERS_PREFIX}{container:04d}/epoch."


def claim_name(container: int, epoch: int) -> str:
    return f"{claim_prefix(container)}{epoch:016x}"


def encode_claim(identity: Identity) -> bytes:
    """The bytes of the last claim."""
    ids = Encoder().u32(_MAGIC).u8(_LAST).raw(identity.store).raw(identity.log).raw(identity.owner)
    body = ids.raw(identity.folder.digest).text(identity.folder.location).finish()
    return Encoder().raw(body).u32(crc32c(body)).finish()


def decode_claim(data: bytes, epoch: int = 0) -> Claim:
    if len(data) < 4 or crc32c(data[:-4]) != int.from_bytes(data[-4:], "big"):
        raise DecodeError(f"a claim of {len(data)} bytes is damaged")

    fields = Decoder(data[:-4])
    magic, version = fields.u32(), fields.u8()
    if magic != _MAGIC or version not in (_WITHOUT_FINGERPRINT, _WITH_FINGERPRINT):
        raise DecodeError(f"not a claim of a version that this code knows: {magic:#x}, {version}")

    store, log, owner = (bytes(fields.raw(16)) for _ in range(3))
    folder = Fingerprint()
    if version == _WITH_FINGERPRINT:
        folder = Fingerprint(bytes(fields.raw(FINGERPRINT_BYTES)), fields.text())
    fields.finish()
    return Claim(epoch, Identity(store, log, owner, folder), version == _WITH_FINGERPRINT)


async def list_claims(chunks: ChunkStorage, container: int) -> list[Claim]:
    """The claims on a container but the last one, lowest epoch first."""
    prefix, last = claim_prefix(container), claim_name(container, LAST_EPOCH)
    claims = []
    for name in [info.name async for info in chunks.list(prefix) if info.name != last]:
        try:
            epoch = hex_number(name[len(prefix) :])
            if epoch > EPOCH_MAX >> 1:  # no owner comes near the end; another one must be able to follow
                raise DecodeError(f"no owner had epoch {epoch}")
            claims.append(decode_claim(await chunks.read(name, 0, _BYTES_MAX + 1), epoch))
        except DecodeError as error:
            raise DataCorruption(f"claim {name} cannot be read: {error}", file=name) from error

    return sorted(claims, key=lambda claim: claim.epoch)


def find_foreign_claims(
    claims: Sequence[Claim], known: Mapping[int, bytes], history_epoch: int, identity: Identity
) -> list[Claim]:
    """The claims that are not of this log's past. Raises ``StoreMismatch`` for a claim of another store.

    ``history_epoch`` is for claims without records, which earlier versions made. Below the lowest record all
    claims were known and deleted: one that appears there again was delayed, and its owner will stop by
    itself."""
    for claim in claims:
        if claim.identity.store != identity.store:
            raise other_store(claim.identity.store, identity.store)

    lowest = min(known, default=None)
    return [claim for claim in claims if not _is_known(claim, known, lowest, history_epoch, identity.log)]


def _is_known(
    claim: Claim, known: Mapping[int, bytes], lowest: int | None, history_epoch: int, log: bytes
) -> bool:
    if claim.epoch in known:
        return known[claim.epoch] == claim.identity.owner

    if lowest is not None:
        return claim.epoch < lowest

    return not claim.has_record and claim.epoch <= history_epoch and claim.identity.log == log


async def leave_last_claim(chunks: ChunkStorage, container: int, identity: Identity) -> None:
    """Create the claim that keeps earlier versions out."""
    with suppress(ChunkExists):
        await chunks.create_with_content(claim_name(container, LAST_EPOCH), [encode_claim(identity)])


async def delete_claims(chunks: ChunkStorage, container: int, claims: Sequence[Claim]) -> None:
    """Delete the claims, once the chain has an element."""
    for claim in claims:
        with suppress(ChunkNotFound):
            await chunks.delete(claim_name(container, claim.epoch))
