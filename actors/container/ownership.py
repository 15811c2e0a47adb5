"""The ownership of a container's long-term storage: the chain of elements that its owners create (rules J3 to
J9, J12).

Owns: when an element is created, the look at the chain before and after, refusals, and the deletion of old
elements. Does not own: what a look means (``journal/manifest/rules.py``), epochs and fencing (the log).

An element is recorded in the log, created, looked at again, and counts once the log says that it exists. One
at a time: the next is recorded when the one before counts.

Cancellation and crash: the element in the log exists, will exist or never does; whoever comes next, this
owner or a later one, creates it again with the same bytes and then goes on."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import anyio
import attrs

from ...journal.log.contract import DurableDataLog, OpenedLog
from ...journal.manifest.chain import (
    StoredElement,
    element_name,
    journal_prefix,
    list_elements,
    read_newest,
)
from ...journal.manifest.element import NOTHING, Element, Kind, Position, Progress
from ...journal.manifest.rules import Known, Step, decide, next_predecessor
from ...journal.manifest.store_record import (
    check_store_record,
    ensure_store_record,
    other_store,
    read_store_record,
)
from ...journal.operations.log_element import ElementCreated, LogElement
from ...journal.operations.operation import Operation
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    CLAIM_REFUSED,
    ChunkExists,
    ChunkNotFound,
    ClaimOutdated,
    OutcomeUnknown,
    StorageFull,
    StoreMismatch,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.statistics import counter, gauge
from ...storage_backends.segments.records.claim import ClaimRecord
from ...storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord
from ...storage_backends.sorted_runs.run_list import RunList
from ..folder.fingerprint import Fingerprint
from ..telemetry.logging import get_logger
from .claims import Claim, delete_claims, find_foreign_claims, leave_last_claim, list_claims
from .confirmation import Confirmation
from .manifest_state import ManifestState
from .owner import Identity

_log = get_logger("container")

_ADOPT = "adopt it, with open_store(adopt=True) or `tierlog serve --adopt`"
PROOF_SECONDS = 30.0
"""A write of a flush needs a look at the chain that is no older."""
_DELETED_MAX = 32
"""Old elements that are deleted when one counts."""


class ManifestSource(Protocol):
    """What the ownership sees of its container."""

    @property
    def manifest(self) -> ManifestState: ...
    @property
    def newest_segment(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    def claim_records(self) -> Mapping[int, ClaimRecord]:
        """Of the claims of earlier versions, by epoch."""
        ...

    def some_chunk(self) -> str | None:
        """A chunk that the log refers to; None if there is none."""

    def now_ms(self) -> int: ...
    async def log(self, op: Operation) -> object:
        """Returns once it is durable."""

    async def wait_durable(self) -> None:
        """Return once everything in ``manifest`` is durable. Raises if the ownership ended."""


@attrs.frozen
class Survey:
    """The chain as it was listed."""

    newest: StoredElement | None
    numbers: Sequence[int] = ()
    claims: Sequence[Claim] = ()
    """Of earlier versions, if there is no element."""

    @property
    def position(self) -> Position:
        return NOTHING if self.newest is None else self.newest.position

    @property
    def epoch(self) -> int:
        """The highest epoch of an owner."""
        return (
            max((claim.epoch for claim in self.claims), default=0)
            if self.newest is None
            else (self.newest.element.epoch)
        )

    @property
    def stores(self) -> set[bytes]:
        """The stores that the chain and the claims belong to."""
        found = {claim.identity.store for claim in self.claims}
        return found if self.newest is None else {*found, self.newest.element.owner.store}

    def check_store(self, store: bytes) -> None:
        """Raises ``StoreMismatch`` if long-term storage is another store's."""
        for other in self.stores - {store}:
            raise other_store(other, store)

    @property
    def folder(self) -> Fingerprint:
        """Of the last owner."""
        if self.newest is None:
            return self.claims[-1].identity.folder if self.claims else Fingerprint()

        owner = self.newest.element.owner
        return Fingerprint(owner.folder, owner.location)


async def read_survey(chunks: ChunkStorage, container: int) -> Survey:
    """The chain as it is now, for those who do not own the container."""
    numbers = await list_elements(chunks, container)
    newest = await read_newest(chunks, container, numbers)
    return Survey(newest, numbers, () if newest else await list_claims(chunks, container))


@attrs.frozen
class ManifestStatistics:
    elements: int = attrs.field(metadata=counter("Elements of the chain that this owner created."))
    head: int = attrs.field(metadata=gauge("The number of the newest element; 0 if there is none."))
    newest_age_seconds: float = attrs.field(
        metadata=gauge("Seconds since an element last counted; since the opening if none has.")
    )
    unconfirmed_creations: int = attrs.field(
        metadata=gauge("1 while the creation of an element has no known outcome.")
    )


def mismatch(step: Step, survey: Survey, known: Known, container: int) -> StoreMismatch:
    """Why an owner does not go on when it finds this (rule J6)."""
    found = survey.position.n
    if step is Step.WENT_BACK:
        return StoreMismatch(
            f"long-term storage lacks {element_name(container, known.base.n)}, which the log knows; it has "
            f"elements up to {found}: it was put back to an earlier state. Put its newest state in place; if "
            f"that is lost, {_ADOPT}"
        )

    return foreign(f"with element {found}", survey.epoch, survey.folder.location)


def foreign(how: str, epoch: int, location: str) -> StoreMismatch:
    owner = f" by {location}" if location else ""
    return StoreMismatch(
        f"long-term storage was claimed {how} in epoch {epoch}{owner}, which this log never did: the folder "
        f"is a copy or an old backup, or a copy of it was opened. Close both and go on with the newest one; "
        f"if that is this one, {_ADOPT}"
    )


def empty(container: int) -> Unavailable:
    return Unavailable(
        f"long-term storage is empty: it has no element of container {container}, nothing below "
        f"{journal_prefix(container)}. Mount it; if it is lost, restore a backup; if it was emptied on "
        f"purpose, {_ADOPT}"
    )


class StorageOwnership:
    """One owner's elements: an ``Open`` when its log is recovered, or before its first write to long-term
    storage if that was down; one for each complete cycle; one before each batch of deletions."""

    def __init__(
        self,
        chunks: ChunkStorage,
        container: int,
        identity: Identity,
        log: DurableDataLog,
        source: ManifestSource,
        confirmation: Confirmation,
        *,
        adopt: bool,
    ) -> None:
        """``adopt``: an operator has decided that this folder lives, whatever the chain says (rule J6)."""
        self._chunks = chunks
        self.container = container
        self.identity = identity
        self._log = log
        self._source = source
        self._confirmation = confirmation
        self._adopt = adopt
        self._is_open = False
        self._found: Survey | None = None
        """The chain before the log was opened; None if long-term storage did not answer."""
        self._seen: StoredElement | None = None
        """The newest element that this owner has read or created."""
        self._durable = NOTHING
        """The newest element whose creation was answered."""
        self._history_epoch = 0
        self._others: deque[int] = deque()
        """Elements that the first listing showed, by number, until they are deleted."""
        self._own: deque[int] = deque()
        """Those that this owner made count."""
        self._deletes = True
        """Whether the last attempt to delete old elements had no error."""
        self._lock, self._proving = anyio.Lock(), anyio.Lock()
        self._proven_until = -math.inf
        self.epoch = 0
        """The epoch of the ownership, once the log is open."""
        self._created = 0
        self._counted_at = 0.0

    # --- opening ---------------------------------------------------------------------------------

    async def open_log(self, previous_epochs: Collection[int] | None) -> OpenedLog:
        """Open the log with an epoch above every owner of this store's chain. Raises ``NotOwner`` and the
        errors of the log."""
        try:
            if (record := await read_store_record(self._chunks)) is not None:
                check_store_record(record, self.identity.store, self.identity.containers)
            self._found = await self._survey()
        except Unavailable as error:
            _log.warning("chain_unreadable", container=self.container, error=str(error))

        above = 0 if self._found is None else self._found.epoch
        opened = await self._log.open(above=above, after=previous_epochs)
        self.epoch, self._history_epoch = opened.epoch, opened.history_epoch
        self._counted_at = anyio.current_time()
        _log.info("log_opened", container=self.container, epoch=self.epoch, groups=len(opened.groups))
        return opened

    async def begin(self) -> None:
        """Claim long-term storage once the log is recovered and can be appended to. If it does not answer, or
        has no room, ``ensure`` does it later. Raises ``StoreMismatch``, ``NotOwner``."""
        if self._found is None:
            return

        try:
            async with self._lock:
                survey = self._found
                if decide(self._known, survey.position) in (Step.EMPTY, Step.WENT_BACK, Step.FOREIGN):
                    # The owner before this one may have gone on until the log was opened, which fenced it.
                    survey = await self._survey()
                await self._open(survey)
        except CLAIM_REFUSED:
            raise
        except (Unavailable, OutcomeUnknown, StorageFull) as error:
            # Without room too: reads and deletes, which make room, need no claim.
            _log.warning("claim_retried", container=self.container, error=str(error))

    async def ensure(self) -> None:
        """Return once long-term storage is claimed: call it before a write there (rule J7). Raises
        ``StoreMismatch`` if it belongs to another history, ``NotOwner`` if a newer owner has this one."""
        async with self._lock:
            await self._ensure()

    async def _ensure(self) -> None:
        if not self._is_open:
            self._log.check_owner()
            await self._open(await self._survey())

    async def _open(self, survey: Survey) -> None:
        # First of all: nothing is created in the empty folder of a missing mount.
        if decide(self._known, survey.position) is Step.EMPTY:
            await self._refuse(Step.EMPTY, survey)
        await self._check_beginning(survey)
        await ensure_store_record(self._chunks, self.identity.store, self.identity.containers)
        await self._advance(Kind.OPEN, survey)
        self._is_open = True

    # --- later -----------------------------------------------------------------------------------

    async def prove(self) -> None:
        """``ensure``, and that no other history has gone on until now (rule J7)."""
        async with self._lock:
            await self._ensure()
            await self._look()

    async def keep_proven(self) -> None:
        """``prove``, unless that was done in the last 30 seconds: for writes that take long (rule J7)."""
        if anyio.current_time() < self._proven_until:
            return

        async with self._proving:
            if anyio.current_time() >= self._proven_until:
                await self.prove()

    async def _look(self) -> None:
        until = anyio.current_time() + PROOF_SECONDS
        survey = await self._survey()
        step = decide(self._known, survey.position)
        if step not in (Step.CREATE_NEXT, Step.CREATE_AGAIN, Step.CONFIRM):
            await self._refuse(step, survey)
        self._proven_until = until
        # An operator may have confirmed the container since its newest element.
        await self._delete_old()

    async def complete_cycle(self, cut: int) -> None:
        """Return once an element with this cycle counts (rule J5)."""
        async with self._lock:
            await self._ensure()
            await self._advance(Kind.CYCLE_COMPLETE, Survey(self._seen), cut)

    async def prove_anew(self) -> None:
        """Return once an element counts that this owner has created since the call (rule J9)."""
        async with self._lock:
            await self._ensure()
            try:
                await self._advance(Kind.PROOF, Survey(self._seen))
            except StorageFull:
                # Deletions make room. Where there is none for an element, no copy can create one either.
                await self._look()

    # --- the chain -------------------------------------------------------------------------------

    @property
    def _known(self) -> Known:
        return self._source.manifest.known

    async def _survey(self) -> Survey:
        """List the chain and read its newest element, if it is not known already."""
        numbers = await list_elements(self._chunks, self.container)
        seen = 0 if self._seen is None else self._seen.position.n
        if numbers and numbers[-1] == seen:
            newest = self._seen
        else:
            newest = await read_newest(self._chunks, self.container, numbers)
        claims = () if newest else await list_claims(self._chunks, self.container)
        survey = Survey(newest, numbers, claims)
        survey.check_store(self.identity.store)
        if self._seen is None:
            self._others.extend(numbers)
        self._seen = newest or self._seen
        return survey

    async def _advance(self, kind: Kind, survey: Survey, cut: int = 0) -> None:
        """Create the next element; first the one that was recorded before and never counted."""
        own: LogElement | None = None
        while True:
            known, intent = self._known, self._source.manifest.intent
            match decide(known, survey.position):
                case Step.CONFIRM if intent is not None and intent.position == self._durable:
                    await self._count(intent)
                    if intent is own or self._serves(intent, kind, cut):
                        await self._delete_old()
                        return

                    continue
                case Step.CREATE_AGAIN | Step.CONFIRM if intent is not None:
                    # Whoever recorded it may have ended before it was durable (rule J3), and may have left
                    # its element in the page cache of a file system only (rule J5).
                    await self._source.wait_durable()
                    await self._create(intent)
                case Step.CREATE_NEXT:
                    own = await self._record(kind, known.base, survey, cut)
                    await self._create(own)
                case step:
                    await self._refuse(step, survey)
                    own = await self._record(kind, next_predecessor(known, survey.position), survey, cut)
                    await self._create(own)
            survey = await self._survey()

    def _serves(self, op: LogElement, kind: Kind, cut: int) -> bool:
        """Whether an element that was recorded earlier says what the next one would."""
        element = op.element
        return (
            kind is element.kind is not Kind.PROOF
            and element.owner.owner == self.identity.owner
            and element.progress.cut >= cut
        )

    async def _record(self, kind: Kind, predecessor: Position, survey: Survey, cut: int) -> LogElement:
        if kind is Kind.OPEN and self._confirmation.unconfirmed is None:
            last = survey.folder
            if last.differs_from(self.identity.folder):
                await self._confirmation.mark(UnconfirmedRecord(Reason.MOVED, last.location))
        published = self._source.manifest.newest
        found = None if survey.newest is None else survey.newest.element
        op = LogElement(
            Element(
                n=predecessor.n + 1,
                kind=kind,
                epoch=self.epoch,
                owner=self.identity.signature,
                predecessor=predecessor,
                time_ms=self._source.now_ms(),
                progress=self._progress(published, found, kind, cut),
                runs=RunList() if published is None else published.runs,
                pins=() if published is None else published.pins,
            ).encode()
        )
        await self._log_whole(op)
        return op

    def _progress(self, published: Element | None, found: Element | None, kind: Kind, cut: int) -> Progress:
        before = Progress() if published is None else published.progress
        others = before if found is None else found.progress
        progress = attrs.evolve(
            before,
            newest_segment=max(before.newest_segment, others.newest_segment, self._source.newest_segment),
            highest_version=max(before.highest_version, others.highest_version, self._source.sequence),
            highest_cycle=max(before.highest_cycle, others.highest_cycle),
        )
        if kind is not Kind.CYCLE_COMPLETE:
            return progress

        cycle = progress.highest_cycle + 1
        return attrs.evolve(progress, cycle=cycle, cut=cut, highest_cycle=cycle)

    async def _create(self, op: LogElement) -> None:
        """Whose bytes the name has if it exists already is found by the look that follows."""
        name = element_name(self.container, op.position.n)
        try:
            await self._chunks.create_with_content(name, [op.content])
        except ChunkExists:
            self._durable = op.position
            return

        self._durable, self._seen = op.position, StoredElement(op.position, op.element)

    async def _count(self, op: LogElement) -> None:
        await self._log_whole(ElementCreated(op.position))
        self._own.append(op.position.n)
        self._created += 1
        self._counted_at = anyio.current_time()

    async def _log_whole(self, op: Operation) -> None:
        """Log it, and hold the lock until it is durable: its caller may have a time limit."""
        with anyio.CancelScope(shield=True):
            await self._source.log(op)

    # --- refusals --------------------------------------------------------------------------------

    async def _refuse(self, step: Step, survey: Survey) -> None:
        """Raise why this owner must not go on; returns if an operator decided that it does."""
        # A successor that came meanwhile is not foreign: it fenced the log before it created anything.
        self._log.check_owner()
        chosen = self._adopt and not self._is_open
        if step is Step.EMPTY and (not chosen or self._source.some_chunk() is not None):
            raise empty(self.container)

        if not chosen:
            raise mismatch(step, survey, self._known, self.container)

        self._check_epoch(survey.epoch)
        await self._confirmation.mark(UnconfirmedRecord(Reason.ADOPTED, survey.folder.location))

    def _check_epoch(self, epoch: int) -> None:
        if epoch >= self.epoch:
            raise ClaimOutdated(
                f"container {self.container} was claimed with epoch {epoch}, not below {self.epoch}: it "
                f"opens again above that"
            )

    # --- the first element -----------------------------------------------------------------------

    async def _check_beginning(self, survey: Survey) -> None:
        """Before the first element of a chain: long-term storage is not the empty folder of a missing mount,
        and no other folder of an earlier version has it (rule J12)."""
        if self._known.base != NOTHING:
            return

        records = self._source.claim_records()
        if not survey.claims and survey.newest is None:
            chunk = self._source.some_chunk()
            was_claimed = any(record.storage_claimed for record in records.values())
            if was_claimed or (chunk is not None and not await self._chunks.exists(chunk)):
                raise empty(self.container)

        if survey.claims or records:
            await self._check_claims(survey.claims)
            await leave_last_claim(self._chunks, self.container, self.identity)
            # An owner of an earlier version claims, then lists once more: one of the two finds the other.
            await self._check_claims(await list_claims(self._chunks, self.container))

    async def _check_claims(self, claims: Sequence[Claim]) -> None:
        known = {epoch: record.owner for epoch, record in self._source.claim_records().items()}
        found = find_foreign_claims(claims, known, self._history_epoch, self.identity)
        if not found:
            return

        self._log.check_owner()
        newest = found[-1]
        if not self._adopt:
            raise foreign("by an earlier version", newest.epoch, newest.identity.folder.location)

        self._check_epoch(newest.epoch)
        await self._confirmation.mark(UnconfirmedRecord(Reason.ADOPTED, newest.identity.folder.location))

    # --- what is behind --------------------------------------------------------------------------

    async def _delete_old(self) -> None:
        """Delete elements below the newest two, lowest first, and claims of earlier versions; if the container
        is unconfirmed, elements of this owner only (rule J8)."""
        head = self._source.manifest.head
        if head is None:
            return

        is_confirmed = self._confirmation.unconfirmed is None
        end = head.position.n - 1
        try:
            if is_confirmed and head.position.n == 1:
                await delete_claims(
                    self._chunks, self.container, await list_claims(self._chunks, self.container)
                )
            left = _DELETED_MAX
            for numbers in (self._others, self._own) if is_confirmed else (self._own,):
                while left and numbers and numbers[0] < end:
                    await self._delete(numbers)
                    left -= 1
            self._deletes = True
        except TierlogError as error:
            if self._deletes:  # once for all attempts of an outage (rule S7)
                _log.warning("elements_not_deleted", container=self.container, error=str(error))
            self._deletes = False

    async def _delete(self, numbers: deque[int]) -> None:
        """Delete the first of the elements."""
        n = numbers.popleft()
        try:
            with suppress(ChunkNotFound):
                await self._chunks.delete(element_name(self.container, n))
        except BaseException:
            numbers.appendleft(n)
            raise

    def statistics(self) -> ManifestStatistics:
        manifest = self._source.manifest
        return ManifestStatistics(
            elements=self._created,
            head=0 if manifest.head is None else manifest.head.position.n,
            newest_age_seconds=anyio.current_time() - self._counted_at if self._counted_at else 0.0,
            unconfirmed_creations=int(manifest.intent is not None),
        )
