"""Claims: an owner claims long-term storage with its epoch before its first write there (rule W8).

Owns: the names and bytes of claims, their validation, and ``StorageClaim``, which opens a log and claims
long-term storage for it. Does not own: epochs and fencing (the log).

The log makes epochs unique among owners that share it. A copied folder, a restored machine, or two folders on
one bucket do not share it. So each owner creates ``_system/containers/<c>/epoch.<E>`` conditionally. One that
finds a claim above its own log's history, or of another store, is a clone and stops.

Layout of a claim: ``magic u32, version u8, store id 16 bytes, log id 16 bytes, owner id 16 bytes, CRC32C
u32``. Cancellation and crash: a claim may exist that nobody uses; a later owner claims a higher epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from ...journal.log.contract import DurableDataLog, OpenedLog
from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder, hex_number
from ...storage_backends.base.errors import (
    ChunkExists,
    DataCorruption,
    OutcomeUnknown,
    StorageFull,
    StoreMismatch,
    Unavailable,
)
from ..telemetry.logging import get_logger

_log = get_logger("container")

_MAGIC = 0x544C434D  # "TLCM"
_VERSION = 1
_BODY_BYTES = 4 + 1 + 3 * 16 + 4


@attrs.frozen
class Identity:
    """Identifies an owner: the store, its log, and this opening of it; 16 bytes each."""

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
        raise DecodeError(f"not a claim of a version that this code knows: {magic:#x}, {version}")

    return Identity(bytes(fields.raw(16)), bytes(fields.raw(16)), bytes(fields.raw(16)))


async def list_claims(chunks: ChunkStorage, container: int) -> list[Claim]:
    """All claims on a container, lowest epoch first."""
    prefix = claim_prefix(container)
    claims = []
    for info in [info async for info in chunks.list(prefix)]:
        try:
            epoch = hex_number(info.name[len(prefix) :])
            claims.append(Claim(epoch, decode_claim(await chunks.read(info.name, 0, _BODY_BYTES + 1))))
        except DecodeError as error:
            raise DataCorruption(f"claim {info.name} cannot be read: {error}", file=info.name) from error

    return sorted(claims, key=lambda claim: claim.epoch)


def validate_claims(claims: Sequence[Claim], history_epoch: int, identity: Identity) -> None:
    """Raises ``StoreMismatch`` if one of the claims cannot be of this log's own past."""
    for claim in claims:
        if claim.identity.store != identity.store:
            raise StoreMismatch(
                f"the long-term storage belongs to store {claim.identity.store.hex()}, this folder to "
                f"{identity.store.hex()}: give each store its own folder or S3 prefix"
            )

        if claim.epoch > history_epoch or claim.identity.log != identity.log:
            raise StoreMismatch(
                f"long-term storage was claimed with epoch {claim.epoch}, which this log (up to epoch "
                f"{history_epoch}) never had: the folder is a copy or an old backup. Open the newest one, or "
                f"adopt this one on purpose (adopt=True, --adopt)"
            )


async def create_claim(chunks: ChunkStorage, container: int, epoch: int, identity: Identity) -> bool:
    """Create the claim of ``epoch``; returns False if another owner has it."""
    name = claim_name(container, epoch)
    body = encode_claim(identity)
    try:
        await chunks.create_with_content(name, [body])
    except ChunkExists:
        # Ours if the answer to an earlier attempt was lost: no other opening has this owner id.
        return await chunks.read(name, 0, _BODY_BYTES + 1) == body

    return True


class StorageClaim:
    """The claim of one owner of one container: made when it opens its log, or before its first write to
    long-term storage if that was down."""

    def __init__(
        self, chunks: ChunkStorage, container: int, identity: Identity, log: DurableDataLog, *, adopt: bool
    ) -> None:
        """``adopt``: do not validate the claims that are there."""
        self._chunks = chunks
        self.container = container
        self.identity = identity
        self._log = log
        self._adopt = adopt
        self._exists = False
        self.epoch = 0
        """The epoch of the ownership, once the log is open."""

    async def open_log(self, previous_epochs: Collection[int] | None) -> OpenedLog:
        """Open the log with an epoch above every claim of this store, and claim long-term storage with it if
        that answers. Raises ``StoreMismatch``, ``NotOwner`` and the errors of the log."""
        claims = None
        try:
            claims = await list_claims(self._chunks, self.container)
        except Unavailable as error:
            _log.warning("claims_unreadable", container=self.container, error=str(error))

        own = [c.epoch for c in claims or () if c.identity.store == self.identity.store]
        opened = await self._log.open(above=max(own, default=0), after=previous_epochs)
        self.epoch = opened.epoch
        if claims is not None:
            if not self._adopt:
                validate_claims(claims, opened.history_epoch, self.identity)
            await self._create()
        _log.info("log_opened", container=self.container, epoch=self.epoch, groups=len(opened.groups))
        return opened

    async def _create(self) -> None:
        """Claim with the log's epoch, or with the first free one above it."""
        epoch = self.epoch
        try:
            while not await create_claim(self._chunks, self.container, epoch, self.identity):
                epoch = await self._log.raise_epoch(epoch)
        except (Unavailable, OutcomeUnknown, StorageFull) as error:
            # Without room too: reads and deletes, which make room, need no claim. If an answer was lost,
            # ``ensure`` finds the claim, or makes it.
            _log.warning("claim_retried", container=self.container, error=str(error))
        else:
            self._exists = True
        self.epoch = epoch

    async def ensure(self) -> None:
        """Return once long-term storage is claimed: call it before a write there. Raises ``StoreMismatch`` if
        it belongs to another log, ``NotOwner`` if a newer owner has this one."""
        if self._exists:
            return

        self._log.check_owner()
        try:
            if not self._adopt:
                claims = await list_claims(self._chunks, self.container)
                validate_claims(claims, self.epoch, self.identity)
            if not await create_claim(self._chunks, self.container, self.epoch, self.identity):
                raise StoreMismatch(
                    f"epoch {self.epoch} of container {self.container} was claimed by another owner, which "
                    f"this log never had: the folder is a copy or has one. Keep the newest one, or adopt "
                    f"this one on purpose (adopt=True, --adopt)"
                )
        except StoreMismatch:
            # A successor that came meanwhile is not a foreign owner: it fenced the log before it made its
            # claim.
            self._log.check_owner()
            raise
        self._exists = True
