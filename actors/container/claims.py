"""Claims: an owner claims long-term storage with its epoch before its first write there (rule W8).

Owns: the names and bytes of claims, what is known of them (``ClaimRecords``), their validation, and
``StorageClaim``, an owner's own claim and its proof. Does not own: epochs and fencing (the log).

The log makes epochs unique among owners that share it. A copied folder, a restored machine, or two folders on
one bucket do not share it. So each owner creates ``_system/containers/<c>/epoch.<E>`` conditionally, after a
record of that claim is durable in the log. A claim that the log has no record of is foreign: this
folder is a copy or an old backup, or a copy of it was opened. Whoever finds one stops. It is looked for at
the opening, before each flush cycle, and before each batch of deletions, so a copy is found by its original
too.

Layout of a claim: ``magic u32, version u8, store id 16 bytes, log id 16 bytes, owner id 16 bytes``; in
version 2 the folder's fingerprint, 16 bytes, and its location as text; ``CRC32C u32``.

Cancellation and crash: a claim may exist that nobody uses, or a record without a claim; a later owner claims
a higher epoch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

import anyio
import attrs

from ...journal.log.contract import DurableDataLog, OpenedLog
from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder, hex_number
from ...storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    ClaimOutdated,
    DataCorruption,
    OutcomeUnknown,
    StorageFull,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.base.sorted_dict import SortedDict, with_prefix
from ...storage_backends.segments.metadata_store import ChunkMetadataStore
from ...storage_backends.segments.records.chunk import CHUNK_PREFIX
from ...storage_backends.segments.records.claim import (
    CLAIM_PREFIX,
    ClaimRecord,
    claim_key,
    epoch_of_key,
)
from ...storage_backends.segments.records.unconfirmed import UNCONFIRMED_KEY, Reason, UnconfirmedRecord
from ..folder.fingerprint import FINGERPRINT_BYTES, LOCATION_BYTES_MAX, Fingerprint
from ..telemetry.logging import get_logger

_log = get_logger("container")

CLAIMS_PREFIX = "_system/containers/"
"""Of the claims on all containers."""
_MAGIC = 0x544C434D  # "TLCM"
_WITHOUT_FINGERPRINT = 1
_VERSION = 2
_ADOPT = "adopt it, with open_store(adopt=True) or `tierlog serve --adopt`"
_ADVICE = f"Close both and go on with the newest one; if that is this one, {_ADOPT}"
_DEAD_MAX = 8
PROOF_SECONDS = 30.0
"""A write of a flush needs a proof of ownership that is no older."""
_LIMITS = {Reason.MOVED: 86_400.0}
"""Seconds after which a container confirms itself (rule G4)."""
_BYTES_MAX = 4 + 1 + 4 * 16 + 2 + LOCATION_BYTES_MAX + 4

Metadata: TypeAlias = SortedDict[str, tuple[int, bytes]]
"""A container's metadata: version and value by key."""


@attrs.frozen
class Identity:
    """Identifies an owner: the store, its log, and this opening of it, 16 bytes each; and where it is."""

    store: bytes
    log: bytes
    owner: bytes
    folder: Fingerprint = Fingerprint()


@attrs.frozen
class Claim:
    epoch: int
    identity: Identity
    has_record: bool = True
    """Whether its owner wrote a record of it first; False for claims of version 1."""


def claim_prefix(container: int) -> str:
    return f"{CLAIMS_PREFIX}{container:04d}/epoch."


def claim_name(container: int, epoch: int) -> str:
    return f"{claim_prefix(container)}{epoch:016x}"


def encode_claim(identity: Identity) -> bytes:
    ids = Encoder().u32(_MAGIC).u8(_VERSION).raw(identity.store).raw(identity.log).raw(identity.owner)
    body = ids.raw(identity.folder.digest).text(identity.folder.location).finish()
    return Encoder().raw(body).u32(crc32c(body)).finish()


def decode_claim(data: bytes, epoch: int = 0) -> Claim:
    if len(data) < 4 or crc32c(data[:-4]) != int.from_bytes(data[-4:], "big"):
        raise DecodeError(f"a claim of {len(data)} bytes is damaged")

    fields = Decoder(data[:-4])
    magic, version = fields.u32(), fields.u8()
    if magic != _MAGIC or version not in (_WITHOUT_FINGERPRINT, _VERSION):
        raise DecodeError(f"not a claim of a version that this code knows: {magic:#x}, {version}")

    store, log, owner = (bytes(fields.raw(16)) for _ in range(3))
    folder = Fingerprint()
    if version == _VERSION:
        folder = Fingerprint(bytes(fields.raw(FINGERPRINT_BYTES)), fields.text())
    fields.finish()
    return Claim(epoch, Identity(store, log, owner, folder), version == _VERSION)


async def list_claims(chunks: ChunkStorage, container: int, known: Collection[str] = ()) -> list[Claim]:
    """The claims on a container whose names are not in ``known``, lowest epoch first."""
    names = await _list_names(chunks, container)
    return await _read_claims(chunks, container, [name for name in names if name not in known])


async def _list_names(chunks: ChunkStorage, container: int) -> list[str]:
    return [info.name async for info in chunks.list(claim_prefix(container))]


async def _read_claims(chunks: ChunkStorage, container: int, names: Iterable[str]) -> list[Claim]:
    prefix = claim_prefix(container)
    claims = []
    for name in names:
        try:
            epoch = hex_number(name[len(prefix) :])
            claims.append(decode_claim(await chunks.read(name, 0, _BYTES_MAX + 1), epoch))
        except DecodeError as error:
            raise DataCorruption(f"claim {name} cannot be read: {error}", file=name) from error

    return sorted(claims, key=lambda claim: claim.epoch)


# --- what the log knows -------------------------------------------------------------------------


def known_claims(metadata: Metadata) -> dict[int, bytes]:
    """The owner of each epoch with a claim record."""
    keys = with_prefix(metadata.runs_from(CLAIM_PREFIX), CLAIM_PREFIX)
    with _decoding(CLAIM_PREFIX):
        return {epoch_of_key(key): ClaimRecord.decode(metadata[key][1]).owner for key in keys}


def unconfirmed_record(metadata: Metadata) -> UnconfirmedRecord | None:
    entry = metadata.get(UNCONFIRMED_KEY)
    with _decoding(UNCONFIRMED_KEY):
        return None if entry is None else UnconfirmedRecord.decode(entry[1])


@contextmanager
def _decoding(key: str) -> Iterator[None]:
    try:
        yield
    except DecodeError as error:
        raise DataCorruption(f"metadata record does not decode: {error}", file=key) from error


class ClaimRecords:
    """A container's records of claims, and whether it is unconfirmed (rules W8, G4)."""

    def __init__(self, metadata: Metadata, store: ChunkMetadataStore) -> None:
        self._metadata = metadata
        self._store = store
        self._known: dict[int, bytes] | None = None
        self._confirmed = anyio.Event()
        self._confirming = anyio.Lock()

    @property
    def known(self) -> Mapping[int, bytes]:
        """The owner of each epoch with a record, from recovery on."""
        if self._known is None:
            self._known = known_claims(self._metadata)
        return self._known

    @property
    def unconfirmed(self) -> UnconfirmedRecord | None:
        return unconfirmed_record(self._metadata)

    @property
    def storage_claimed(self) -> bool:
        """Whether long-term storage is known to have held a claim."""
        with _decoding(CLAIM_PREFIX):
            values = (self._value(claim_key(epoch)) for epoch in self.known)
            return any(ClaimRecord.decode(value).storage_claimed for value in values)

    def some_chunk(self) -> str | None:
        """A chunk that the log refers to; None if there is none."""
        keys = with_prefix(self._metadata.runs_from(CHUNK_PREFIX), CHUNK_PREFIX)
        return next((key.removeprefix(CHUNK_PREFIX) for key in keys), None)

    async def enter(
        self,
        owners: Mapping[int, bytes],
        unconfirmed: UnconfirmedRecord | None = None,
        *,
        storage_claimed: bool = False,
    ) -> None:
        """Write the records of these claims, by epoch, and in the same commit that the container is
        unconfirmed; returns once that is durable. ``storage_claimed``: long-term storage has a claim, or is
        known to have had one."""
        writes = {
            claim_key(epoch): ClaimRecord(owner, storage_claimed).encode() for epoch, owner in owners.items()
        }
        if unconfirmed is not None:
            writes[UNCONFIRMED_KEY] = unconfirmed.encode()
        if changed := {key: value for key, value in writes.items() if self._value(key) != value}:
            await self._store.commit({key: self._version(key) for key in changed}, changed)
        self._known = {**self.known, **owners}

    async def forget(self, epochs: Collection[int]) -> None:
        """Remove the records of deleted claims, but none above a claim that is still there: what appears
        below the lowest record is taken for known."""
        lowest = min(self.known.keys() - set(epochs), default=0)
        keys = {claim_key(epoch): epoch for epoch in epochs if epoch < lowest and epoch in self.known}
        if keys:
            await self._store.commit({key: self._version(key) for key in keys}, dict.fromkeys(keys))
            self._known = {epoch: owner for epoch, owner in self.known.items() if epoch >= lowest}

    async def confirm(self) -> None:
        """The container may delete what it does not know (rule G4); returns once that is durable.

        The records of dead claims go in the same commit: chunks of owners before the lowest record are no
        longer taken as proof that the log is old."""
        await self._end_unconfirmed(sorted(self.known)[:-1])

    async def _end_unconfirmed(self, epochs: Collection[int]) -> None:
        async with self._confirming:  # operators and the end of 24 hours may come at the same time
            if self._version(UNCONFIRMED_KEY):
                versions = {key: self._version(key) for key in (UNCONFIRMED_KEY, *map(claim_key, epochs))}
                await self._store.commit(versions, dict.fromkeys(versions))
                self._known = {epoch: owner for epoch, owner in self.known.items() if epoch not in epochs}
        confirmed, self._confirmed = self._confirmed, anyio.Event()
        confirmed.set()

    async def wait_confirmed(self) -> None:
        """Return once the container is confirmed: by ``confirm``, or, if the folder was only moved, after 24
        hours of this ownership."""
        while (record := self.unconfirmed) is not None:
            with anyio.move_on_after(_LIMITS.get(record.reason, math.inf)) as limit:
                await self._confirmed.wait()
            if limit.cancelled_caught:
                await self._end_unconfirmed(())

    def _version(self, key: str) -> int:
        return self._metadata.get(key, (0, b""))[0]

    def _value(self, key: str) -> bytes:
        return self._metadata.get(key, (0, b""))[1]


# --- validation ---------------------------------------------------------------------------------


def find_foreign_claims(
    claims: Sequence[Claim], known: Mapping[int, bytes], history_epoch: int, identity: Identity
) -> list[Claim]:
    """The claims that are not of this log's past. Raises ``StoreMismatch`` for a claim of another store.

    ``history_epoch`` is for claims without records, which older versions made. Below the lowest record all
    claims were known and deleted: one that appears there again was delayed, and its owner will stop by
    itself."""
    for claim in claims:
        if claim.identity.store != identity.store:
            raise StoreMismatch(
                f"the long-term storage belongs to store {claim.identity.store.hex()}, this folder to "
                f"{identity.store.hex()}: give each store its own folder or S3 prefix. If the logs of that "
                f"store (wal/) were lost, remove this new wal/ and restore a backup (`tierlog restore`); "
                f"adopting is for copies of the same store only"
            )

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


def validate_claims(
    claims: Sequence[Claim], known: Mapping[int, bytes], history_epoch: int, identity: Identity
) -> None:
    """Raises ``StoreMismatch`` if one of the claims is not of this log's past."""
    if foreign := find_foreign_claims(claims, known, history_epoch, identity):
        raise _mismatch(foreign[-1])


def _mismatch(claim: Claim) -> StoreMismatch:
    location = claim.identity.folder.location
    owner = f" by {location}" if location else ""
    return StoreMismatch(
        f"long-term storage was claimed with epoch {claim.epoch}{owner}, which this log never did: "
        f"the folder is a copy or an old backup, or a copy of it was opened. {_ADVICE}"
    )


async def create_claim(chunks: ChunkStorage, container: int, epoch: int, identity: Identity) -> bool:
    """Create the claim of ``epoch``; returns False if another owner has it."""
    name = claim_name(container, epoch)
    body = encode_claim(identity)
    try:
        await chunks.create_with_content(name, [body])
    except ChunkExists:
        # Ours if the answer to an earlier attempt was lost: no other opening has this owner id.
        return await chunks.read(name, 0, _BYTES_MAX + 1) == body

    return True


class StorageClaim:
    """The claim of one owner of one container: made when its log is recovered, or before its first write to
    long-term storage if that was down."""

    def __init__(
        self,
        chunks: ChunkStorage,
        container: int,
        identity: Identity,
        log: DurableDataLog,
        records: ClaimRecords,
        *,
        adopt: bool,
    ) -> None:
        """``adopt``: go on in spite of foreign claims, unconfirmed (rule G4)."""
        self._chunks = chunks
        self.container = container
        self.identity = identity
        self._log = log
        self._records = records
        self._adopt = adopt
        self._exists = False
        self._listed: list[Claim] | None = None
        """The claims before the log was opened; None if long-term storage did not answer."""
        self._seen: set[str] = set()
        """Names of claims that are not foreign."""
        self._history_epoch = 0
        self._claiming = anyio.Lock()
        self._proving = anyio.Lock()
        self._proven_until = -math.inf
        self.epoch = 0
        """The epoch of the ownership, once the log is open."""

    async def open_log(self, previous_epochs: Collection[int] | None) -> OpenedLog:
        """Open the log with an epoch above every claim of this store. Raises ``NotOwner`` and the errors of
        the log."""
        try:
            self._listed = await list_claims(self._chunks, self.container)
        except Unavailable as error:
            _log.warning("claims_unreadable", container=self.container, error=str(error))

        own = [c.epoch for c in self._listed or () if c.identity.store == self.identity.store]
        opened = await self._log.open(above=max(own, default=0), after=previous_epochs)
        self.epoch, self._history_epoch = opened.epoch, opened.history_epoch
        _log.info("log_opened", container=self.container, epoch=self.epoch, groups=len(opened.groups))
        return opened

    async def begin(self) -> None:
        """Claim long-term storage once the log is recovered and can be appended to. If it does not answer, or
        has no room, ``ensure`` does it later. Raises ``StoreMismatch``, ``NotOwner``."""
        if self._listed is None:
            return

        try:
            await self._claim(self._listed)
        except ClaimOutdated:
            raise
        except (Unavailable, OutcomeUnknown, StorageFull) as error:
            # Without room too: reads and deletes, which make room, need no claim. If an answer was lost,
            # ``ensure`` finds the claim, or makes it.
            _log.warning("claim_retried", container=self.container, error=str(error))
        else:
            await self._delete_dead()

    async def _delete_dead(self) -> None:
        """Delete the claims of dead owners if there are many: brief owners end before their collector does
        it, and each opening reads what is left. The record of this owner's claim is a barrier (rule G1): it
        was appended after they were listed."""
        listed = {claim.epoch for claim in self._listed or ()}
        dead = sorted(epoch for epoch in listed | self._records.known.keys() if epoch < self.epoch)
        if len(dead) <= _DEAD_MAX or self._records.unconfirmed is not None:
            return

        deleted = []
        try:
            # The newest stays until its chunks were compared with the log (rule G4).
            for epoch in dead[:-1]:
                with suppress(ChunkNotFound):
                    await self._chunks.delete(claim_name(self.container, epoch))
                deleted.append(epoch)
        except (Unavailable, OutcomeUnknown) as error:
            _log.warning("claims_not_deleted", container=self.container, error=str(error))
        await self._records.forget(deleted)

    async def ensure(self) -> None:
        """Return once long-term storage is claimed: call it before a write there. Raises ``StoreMismatch`` if
        it belongs to another log, ``NotOwner`` if a newer owner has this one."""
        async with self._claiming:
            if self._exists:
                return

            self._log.check_owner()
            await self._claim(await list_claims(self._chunks, self.container))

    async def keep_proven(self) -> None:
        """``prove``, unless that was done in the last 30 seconds: for writes that take long (rule W8)."""
        if anyio.current_time() < self._proven_until:
            return

        async with self._proving:
            if anyio.current_time() >= self._proven_until:
                await self.prove()

    async def prove(self) -> None:
        """``ensure``, and until now the claim is there and no foreign one (rules W8, G1). Raises
        ``Unavailable`` if long-term storage lacks the claim: it was unmounted."""
        until = anyio.current_time() + PROOF_SECONDS
        await self.ensure()
        names = await _list_names(self._chunks, self.container)
        new = [name for name in names if name not in self._seen]
        claims = await _read_claims(self._chunks, self.container, new)
        try:
            validate_claims(claims, self._records.known, self._history_epoch, self.identity)
            if claim_name(self.container, self.epoch) not in names:
                raise Unavailable(
                    f"long-term storage lacks the claim of container {self.container} with epoch "
                    f"{self.epoch}, which this owner made: it is not mounted any more. Mount it"
                )
        except (StoreMismatch, Unavailable):
            self._log.check_owner()
            raise
        self._note_seen(claims)
        self._proven_until = until

    async def _claim(self, claims: Sequence[Claim]) -> None:
        try:
            await self._make_claim(claims)
        except (StoreMismatch, ClaimOutdated):
            # A successor that came meanwhile is not foreign: it fenced the log before it made its claim.
            self._log.check_owner()
            raise

    async def _make_claim(self, claims: Sequence[Claim]) -> None:
        """Write the record, create the claim, and list again. So of two owners that claim at the same time
        the one with the lower epoch finds the other, to whom its claim may be one that was known once."""
        await self._check_not_empty(claims)
        foreign = find_foreign_claims(claims, self._records.known, self._history_epoch, self.identity)
        if foreign and not self._adopt:
            raise _mismatch(foreign[-1])

        self._check_highest(foreign)
        owners = {claim.epoch: claim.identity.owner for claim in foreign} | {self.epoch: self.identity.owner}
        was_claimed = bool(claims) or self._records.storage_claimed
        await self._records.enter(owners, self._doubt(claims, foreign), storage_claimed=was_claimed)
        await self._create()
        if not was_claimed:
            await self._records.enter({self.epoch: self.identity.owner}, storage_claimed=True)
        names = {claim_name(self.container, claim.epoch) for claim in claims}
        later = await list_claims(self._chunks, self.container, names)
        foreign = find_foreign_claims(later, self._records.known, self._history_epoch, self.identity)
        if foreign and not self._adopt:
            raise _mismatch(foreign[-1])

        self._check_highest(foreign)
        self._exists = True
        self._note_seen([*claims, *later])

    def _check_highest(self, foreign: Sequence[Claim]) -> None:
        if foreign and foreign[-1].epoch > self.epoch:
            raise ClaimOutdated(
                f"container {self.container} was claimed with epoch {foreign[-1].epoch}, above {self.epoch}: "
                f"it opens again above that"
            )

    async def _check_not_empty(self, claims: Sequence[Claim]) -> None:
        """Raises ``Unavailable`` if long-term storage has neither a claim nor a chunk of this container, but
        had one: it is not mounted, and what is flushed now would be lost with the log's groups. The record of
        a claim alone proves nothing: an owner may end between its record and its claim."""
        if claims:
            return

        chunk = self._records.some_chunk()
        if chunk is not None and not await self._chunks.exists(chunk):
            raise self._empty(f", and not its chunk {chunk}. Mount it; if it is lost, restore a backup")

        if chunk is None and self._records.storage_claimed and not self._adopt:
            raise self._empty(f". Mount it; if it was emptied on purpose, {_ADOPT}")

    def _empty(self, more: str) -> Unavailable:
        return Unavailable(f"long-term storage is empty: it has no claim of container {self.container}{more}")

    def _doubt(self, claims: Sequence[Claim], foreign: Sequence[Claim]) -> UnconfirmedRecord | None:
        """Why this owner must not delete anything yet (rule G4)."""
        others = [claim.identity.folder for claim in claims if claim.epoch != self.epoch]
        last = others[-1] if others else Fingerprint()
        if foreign:
            return UnconfirmedRecord(Reason.ADOPTED, last.location)

        if self._records.unconfirmed is None and last.differs_from(self.identity.folder):
            return UnconfirmedRecord(Reason.MOVED, last.location)

        return None

    async def _create(self) -> None:
        if not await create_claim(self._chunks, self.container, self.epoch, self.identity):
            raise StoreMismatch(
                f"epoch {self.epoch} of container {self.container} was claimed by another owner, which this "
                f"log never had: the folder is a copy or has one. {_ADVICE}"
            )

    def _note_seen(self, claims: Sequence[Claim]) -> None:
        self._seen |= {claim_name(self.container, claim.epoch) for claim in claims}
