"""The ownership of a container's long-term storage: the chain of elements (rules J3 to J9, J12).

Owns: when an element is created, the listing of the chain before and after, and refusals. Does not own: what
a listing means (``journal/manifest/rules.py``), the deletion of old elements (``old_elements.py``), epochs
and fencing (the log).

An element is recorded in the log, created, checked against a listing, and counts once the log has that it
exists. One at a time: the next is recorded when the one before counts.

Cancellation and crash: the element in the log exists, will exist or never does; whoever comes next, this
owner or a later one, creates it again with the same bytes and then goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import anyio
import attrs

from ...journal.log.contract import DurableDataLog, OpenedLog
from ...journal.manifest.chain import (
    StoredElement,
    element_name,
    list_elements,
    read_element,
    read_newest,
)
from ...journal.manifest.element import (
    ELEMENT_BYTES_MAX,
    NOTHING,
    Element,
    Kind,
    Pin,
    Position,
    Progress,
)
from ...journal.manifest.rules import Known, Step, decide, next_predecessor
from ...journal.manifest.store_record import STORE_RECORD
from ...journal.operations.log_element import ElementCreated, LogElement, LogElementChange
from ...journal.operations.operation import Operation
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    CLAIM_REFUSED,
    ChunkExists,
    ChunkNotFound,
    ClaimOutdated,
    DataCorruption,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from ...storage_backends.segments.records.claim import ClaimRecord
from ...storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord
from ...storage_backends.sorted_runs.compaction_policy import Merge
from ...storage_backends.sorted_runs.run_entry import RunEntry
from ...storage_backends.sorted_runs.run_list import RunList
from ..telemetry.logging import get_logger
from .claims import Claim, find_foreign_claims, leave_last_claim, list_claims
from .confirmation import Confirmation
from .listed_chain import (
    OURS,
    ListedChain,
    empty,
    foreign,
    lost_log,
    mismatch,
    moved_from,
    place_of_owner,
    refuse_migrated,
    refuse_moved,
)
from .manifest_state import ManifestState
from .old_elements import OldElements
from .owner import Identity
from .shared_store_record import SharedStoreRecord

if TYPE_CHECKING:
    from .statistics import JournalStatistics

_log = get_logger("container")

ChangeRuns = Callable[[RunList], RunList]
ChangePins = Callable[[Sequence[Pin], Progress], Sequence[Pin]]
"""The pins of an element whose progress is given, from those before."""
PROOF_SECONDS = 30.0
"""Seconds for which a check of the chain serves the writes of a flush."""
OPENING_SECONDS = 5.0
"""Seconds that an opening waits for the journal before it opens the log."""
_BLOCK_BYTES = 4096
_ROUNDS_MAX = 8
"""The most steps in which one element comes to count; it takes four if nobody else creates or deletes any."""


class ManifestSource(Protocol):
    """What the ownership sees of its container."""

    @property
    def container(self) -> int:
        """The container's index."""

    @property
    def manifest(self) -> ManifestState: ...
    @property
    def newest_segment(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    def claim_records(self) -> Mapping[int, ClaimRecord]:
        """The records of claims of earlier versions, by epoch."""
        ...

    async def some_chunk(self) -> str | None:
        """A chunk that the log refers to; None if there is none. Raises ``Unavailable`` if its record cannot
        be read, and ``DataCorruption``."""

    def now_ms(self) -> int: ...
    async def log(self, op: Operation) -> object:
        """Returns once it is durable."""

    async def wait_durable(self) -> None:
        """Return once everything in ``manifest`` is durable. Raises if the ownership ended."""


def _hidden(name: str) -> Unavailable:
    return Unavailable(
        f"long-term storage has {name}, but a listing or a read did not return it: tierlog needs a storage "
        f"whose listings and reads include everything that was created before"
    )


def _no_room(name: str) -> StorageFull:
    return StorageFull(
        f"long-term storage has no room for {name}: flushes and deletions wait for it. Free some KiB there"
    )


def _blocks(op: LogElement) -> int:
    """What the element takes of a file system."""
    return -(-len(op.content) // _BLOCK_BYTES)


class StorageOwnership:
    """One owner's elements: an ``Open`` when its log is recovered, or before its first write to long-term
    storage if that was down; one for each complete cycle; one before each batch of deletions."""

    def __init__(
        self,
        chunks: ChunkStorage,
        identity: Identity,
        log: DurableDataLog,
        source: ManifestSource,
        confirmation: Confirmation,
        record: SharedStoreRecord,
        *,
        adopt: bool,
        is_built: bool,
        migrates: bool = False,
    ) -> None:
        """``adopt``: an operator has decided that this folder goes on, whatever the chain holds (rule J6).
        ``is_built``: the folder is under construction, and a log that holds nothing is not lost.
        ``migrates``: nothing is served before long-term storage is claimed (rule E3)."""
        self._chunks = chunks
        self.container = source.container
        self.identity = identity
        self._log = log
        self._source = source
        self._confirmation = confirmation
        self._adopt, self._is_built, self._migrates = adopt, is_built, migrates
        self._destination = ""
        """Where the container goes on; empty unless this owner ends it here."""
        self._record = record
        self._is_open = self._folder_checked = False
        self._found: ListedChain | None = None
        """The chain before the log was opened; None if long-term storage did not answer."""
        self._seen: StoredElement | None = None
        """The element with the highest number that this owner has read or created."""
        self._durable = NOTHING
        """The newest element whose creation was answered."""
        self._history_epoch = 0
        self._old = OldElements(chunks, self.container, identity, confirmation)
        self.spared_elements = self._old.spared
        self._lock, self._proving = anyio.Lock(), anyio.Lock()
        """``_lock``: while an element comes to count, which may take as long as long-term storage does.
        Checks of the chain do not wait for it."""
        self._proven_at = -math.inf
        """When the last check of the chain began."""
        self.epoch = 0
        """The epoch of the ownership, once the log is open."""
        self._created = 0
        self._counted_at = 0.0

    # --- opening ---------------------------------------------------------------------------------

    async def open_log(self, previous_epochs: Collection[int] | None) -> OpenedLog:
        """Open the log with an epoch above every owner of this store's chain. Raises ``NotOwner`` and the
        errors of the log."""
        unread: TierlogError | None = None
        try:
            with anyio.fail_after(OPENING_SECONDS):
                await self._record.check(self._chunks)
                self._found = await self._list_chain()
        except (Unavailable, DataCorruption, TimeoutError) as error:
            # J11: reads need no long-term storage; each write there checks the chain first (J7).
            reason = str(error) or f"no answer in {OPENING_SECONDS:.0f} s"
            _log.warning("journal_unreadable", container=self.container, error=reason)
            unread = error if isinstance(error, DataCorruption) else Unavailable(reason)

        found, above = self._found, 0
        # Of elements only to adopt them: what is refused must change nothing that stays (rule J6).
        if found is not None and (found.newest is None or (self._adopt and found.leaves_room)):
            above = found.epoch
        opened = await self._log.open(above=above, after=previous_epochs)
        self.epoch, self._history_epoch = opened.epoch, opened.history_epoch
        self._counted_at = anyio.current_time()
        _log.info("log_opened", container=self.container, epoch=self.epoch, groups=len(opened.groups))
        if unread is not None and opened.next_group == 1 and not self._is_built:
            # R11: a log that holds nothing may be lost, which the chain alone shows. Nothing of it is served
            # before that can be read.
            raise unread
        return opened

    def refuse_migrated(self) -> None:
        """Raise ``StoreMismatch`` if the log, as it was recovered, says that the container goes on at another
        place (rule E2)."""
        last, is_decided = self._source.manifest.recorded_last, None
        if last is not None and self._found is not None and self._found.newest is not None:
            # E3: an ``Open`` of this place is in the log before it is in the chain.
            is_decided = self._found.newest.n > last.n
        place = place_of_owner(self.identity.folder.location)
        refuse_migrated(last, self.container, place, is_decided=is_decided)

    async def begin(self) -> None:
        """Claim long-term storage once the log is recovered and can be appended to. If it does not answer, or
        has no room, ``ensure`` does it later. Raises ``StoreMismatch``, ``NotOwner``."""
        if self._migrates:
            await self.ensure()
            return

        if self._found is None:
            return

        try:
            async with self._lock:
                listed = self._found
                if decide(self._known, listed.position) in (Step.EMPTY, Step.ROLLED_BACK, Step.FOREIGN):
                    # The owner before this one may have gone on until the log was opened, which fenced it.
                    listed = await self._list_chain()
                await self._open(listed)
        except CLAIM_REFUSED:
            raise
        except (Unavailable, OutcomeUnknown, StorageFull, DataCorruption) as error:
            # Without room too: reads and deletes, which make room, need no claim.
            _log.warning("claim_retried", container=self.container, error=str(error))

    async def ensure(self) -> None:
        """Return once long-term storage is claimed: call it before a write there (rule J7). Raises
        ``StoreMismatch`` if it belongs to another history, ``NotOwner`` if a newer owner has this one."""
        if not self._is_open:
            async with self._lock:
                await self._ensure()

    async def _ensure(self) -> None:
        if not self._is_open:
            await self._log.confirm_owner()
            await self._open(await self._list_chain())

    async def _open(self, listed: ListedChain) -> None:
        # First of all: nothing is created in the empty folder of a missing mount.
        if decide(self._known, listed.position) is Step.EMPTY:
            await self._refuse(Step.EMPTY, listed)
        # Before anything that may fail: what a moved folder does without its own element is unconfirmed too.
        await self._check_folder(listed)
        await self._check_beginning(listed)
        # An element that counts shows that an earlier owner made the check for which there is no room.
        if not await self._record.ensure(self._chunks) and self._known.base == NOTHING:
            raise _no_room(STORE_RECORD)
        self._old.has_claims = bool(listed.claims or self._source.claim_records())
        if self._confirmation.unconfirmed is not None:
            await self._old.find_own()
        await self._advance(Kind.OPEN, listed)
        self._is_open = True

    # --- later -----------------------------------------------------------------------------------

    async def prove(self, age: float = 0.0) -> None:
        """``ensure``, and that no other history had gone on ``age`` seconds ago, or later (rule J7)."""
        await self.ensure()
        if anyio.current_time() >= self._proven_at + age:
            await self._check_chain()

    async def check_chain(self) -> None:
        """``prove``, before a listing of chunks and before deletions that are tried again. Finds what dead
        owners created late (rule J8), and reads the newest element again (rule J9)."""
        await self.ensure()
        await self._check_chain(whole=True)
        # An operator may have confirmed the container since its newest element.
        await self._delete_old()

    async def keep_proven(self) -> None:
        """``prove``, unless that was done in the last 30 seconds: for writes that take long (rule J7)."""
        if anyio.current_time() < self._proven_at + PROOF_SECONDS:
            return

        async with self._proving:
            await self.prove(PROOF_SECONDS)

    async def _check_chain(self, *, whole: bool = False) -> None:
        self._log.check_folder()
        while True:
            began, known = anyio.current_time(), self._known
            listed = await self._list_chain(whole=whole, reads=whole)
            step = decide(self._known, listed.position)
            if step in OURS:
                break

            # During a check an element of this owner may come to count: then it shows less than is known.
            if self._known == known:
                await self._refuse(step, listed)
                break

        self._proven_at = began

    async def complete_cycle(self, cut: int, publish: ChangeRuns | None = None) -> None:
        """Return once an element counts that records a complete cycle up to ``cut`` (rule J5). Its run list
        is the one that counted before, or is made of it by ``publish`` (rule M10), unless an element that was
        recorded earlier serves.

        It takes as long as long-term storage does. Checks, and so flushes, go on meanwhile; elements are
        created one after the other. Raises ``CLAIM_REFUSED`` if this owner must not go on; after any other
        error call it again, with the same cut or a newer one: what was recorded is settled first."""
        async with self._lock:
            await self._ensure()
            change = publish or (lambda before: before)
            await self._advance(Kind.CYCLE_COMPLETE, ListedChain(self._seen), cut, change)

    async def replace_runs(self, merge: Merge, added: Sequence[RunEntry]) -> None:
        """Return once an element counts that names ``added`` in place of the runs of ``merge`` (rule M7),
        or an earlier result of the same merge."""
        async with self._lock:
            await self._ensure()
            await self._advance(
                Kind.COMPACTED,
                ListedChain(self._seen),
                change=lambda before: merge.applied_to(before, added),
            )

    async def change_pins(self, change: ChangePins) -> StoredElement:
        """Return the element with the changed pins once it counts. ``change`` is called in the step that
        makes the element of the runs that count then (rule P1)."""
        async with self._lock:
            await self._ensure()
            op = await self._advance(Kind.PINNED, ListedChain(self._seen), pins=change)
        return StoredElement(op.position, op.element)

    async def migrate(self, place: str) -> StoredElement:
        """Return the element which says that the container goes on at ``place``, once it counts. This owner
        creates none after it (rule E1)."""
        async with self._lock:
            await self._ensure()
            self._destination = place
            op = await self._advance(Kind.MIGRATED, ListedChain(self._seen))
        return StoredElement(op.position, op.element)

    async def prove_anew(self) -> None:
        """Return once an element counts that this owner has recorded since the call (rule J9). An ``Open`` is
        none: it may have been recorded before, and a copy of the log since then knows it."""
        async with self._lock:
            await self._ensure()
            # Read again: storage that was put back may have another element of the same number.
            await self._advance(Kind.PROOF, await self._list_chain(reads=True))

    # --- the chain -------------------------------------------------------------------------------

    @property
    def _known(self) -> Known:
        return self._source.manifest.known

    async def _list_chain(self, *, whole: bool = False, reads: bool = False) -> ListedChain:
        """List the chain from the newest element that is known on, or the ``whole`` chain, and read the
        newest if it is another one, or in any case with ``reads``."""
        seen = self._seen
        after = 0 if seen is None or whole else seen.position.n - 1
        numbers = await list_elements(self._chunks, self.container, after)
        if after and not numbers:
            after, numbers = 0, await list_elements(self._chunks, self.container)
        if not after:
            self._old.listed(numbers)
        if seen is not None and numbers[-1:] == [seen.position.n] and not reads:
            return ListedChain(seen, numbers)

        newest = await read_newest(self._chunks, self.container, numbers, seen)
        claims = () if newest else await list_claims(self._chunks, self.container)
        return self._found_newest(newest, numbers, claims)

    def _found_newest(
        self, newest: StoredElement | None, numbers: Sequence[int] = (), claims: Sequence[Claim] = ()
    ) -> ListedChain:
        """Raises ``StoreMismatch`` if it is another store's."""
        listed = ListedChain(newest, numbers, claims)
        listed.check_store(self.identity.store)
        if newest is not None and (self._seen is None or newest.position.n >= self._seen.position.n):
            self._seen = newest
        return listed

    async def _advance(
        self,
        kind: Kind,
        listed: ListedChain,
        cut: int = 0,
        change: ChangeRuns = lambda before: before,
        pins: ChangePins = lambda before, progress: before,
    ) -> LogElement:
        """Create the next element; first the one that was recorded before and never counted. ``change`` makes
        its run list from the one that counts when it is recorded, and ``pins`` its pins, so changes of
        several callers add up. Returns the element that serves."""
        own: LogElement | None = None
        for _ in range(_ROUNDS_MAX):
            known, op = self._known, self._source.manifest.intent
            match decide(known, listed.position):
                case Step.CONFIRM if op is not None and op.position == self._durable:
                    await self._count(op)
                    if op == own or self._serves(op, kind, cut):
                        await self._delete_old()
                        return op

                    continue
                case Step.CREATE_AGAIN | Step.CONFIRM if op is not None:
                    # Whoever recorded it may have ended before it was durable (rule J3), and may have left
                    # its element in the page cache of a file system only (rule J5).
                    await self._source.wait_durable()
                case Step.CREATE_NEXT:
                    op = own = await self._log_next(kind, known.base, listed, cut, change, pins)
                case step:
                    await self._refuse(step, listed)
                    predecessor = next_predecessor(known, listed.position)
                    op = own = await self._log_next(kind, predecessor, listed, cut, change, pins)
            listed = await self._create(op)
        raise _hidden(element_name(self.container, self._known.base.n + 1))

    def _serves(self, op: LogElement, kind: Kind, cut: int) -> bool:
        """Whether the element that was recorded earlier makes the next one needless."""
        element = op.element
        return (
            kind is element.kind not in (Kind.PROOF, Kind.PINNED, Kind.MIGRATED)
            and element.owner.owner == self.identity.owner
            and element.progress.cut >= cut
        )

    async def _log_next(
        self,
        kind: Kind,
        predecessor: Position,
        listed: ListedChain,
        cut: int,
        change: ChangeRuns,
        pins: ChangePins,
    ) -> LogElement:
        owner = self.identity.signature
        if kind is Kind.MIGRATED:
            owner = attrs.evolve(owner, location=self._destination)
        elif self._destination:
            raise Unavailable(f"container {self.container} goes on at {self._destination}")
        published = self._source.manifest.newest
        before = Progress() if published is None else published.progress
        found = before if listed.newest is None else listed.newest.element.progress
        cycle_cut = cut if kind is Kind.CYCLE_COMPLETE else None
        progress = before.advanced(found, self._source.newest_segment, self._source.sequence, cycle_cut)
        # P5: of the history that went on there, too.
        kept = (each.pins for each in (published, listed.newest and listed.newest.element) if each)
        known = tuple(dict.fromkeys(pin for pins_of in kept for pin in pins_of))
        op = LogElement.of(
            Element(
                n=predecessor.n + 1,
                kind=kind,
                epoch=self.epoch,
                owner=owner,
                predecessor=predecessor,
                time_ms=self._source.now_ms(),
                progress=progress,
                runs=change(self._source.manifest.runs),
                pins=tuple(pins(known, progress)),
            )
        )
        if (size := len(op.content)) > ELEMENT_BYTES_MAX:  # nobody could read it (rule J2)
            raise StorageFull(
                f"an element of the journal has at most {ELEMENT_BYTES_MAX} bytes, this one would have "
                f"{size}: there is room once runs are merged, and segments flushed that are held back"
            )
        head = self._source.manifest.head
        # Without runs it is short, and is logged as earlier versions do it.
        has_runs = head is not None and len(self._source.manifest.runs) > 0
        await self._log_whole(LogElementChange.between(head, op) if head is not None and has_runs else op)
        return op

    async def _create(self, op: LogElement) -> ListedChain:
        """Create the element. Returns the chain as it is after that: another history may have created its
        number, gone on, and deleted it before this creation began, or long-term storage may have been put
        back (rule J4)."""
        n, before = op.position.n, op.element.predecessor
        newest = StoredElement(op.position, op.element)
        self._log.check_folder()
        try:
            await self._put(op)
        except ChunkExists:
            # By an earlier attempt, or another history.
            try:
                newest = await read_element(self._chunks, self.container, n, newest)
            except ChunkNotFound:
                return await self._list_chain()

        listed = await list_elements(self._chunks, self.container, max(0, n - 2))
        if numbers := [number for number in listed if number > n]:
            newest = await read_newest(self._chunks, self.container, numbers) or newest
        elif before.n and before.n not in listed and not self._confirmation.is_adopted:
            await self._refuse(Step.ROLLED_BACK, ListedChain(newest))
        self._durable = op.position
        return self._found_newest(newest, numbers)

    async def _put(self, op: LogElement) -> None:
        name = element_name(self.container, op.position.n)
        try:
            await self._chunks.create_with_content(name, [op.content])
        except StorageFull as error:
            # Those before the head are the reserve: their room is enough for another one.
            head = self._source.manifest.head
            if head is None or not await self._old.delete_below(head.position.n):
                raise _no_room(name) from error
            try:
                await self._chunks.create_with_content(name, [op.content])
            except StorageFull as again:
                raise _no_room(name) from again

    async def _count(self, op: LogElement) -> None:
        await self._log_whole(ElementCreated(op.position))
        self._old.counted(op.position.n)
        self._created += 1
        self._counted_at = anyio.current_time()

    async def _log_whole(self, op: Operation) -> None:
        """Log it, and hold the lock until it is durable, even if the caller's time limit ends."""
        with anyio.CancelScope(shield=True):
            await self._source.log(op)

    # --- refusals --------------------------------------------------------------------------------

    async def _refuse(self, step: Step, listed: ListedChain) -> None:
        """Raise why this owner must not go on; returns if an operator decided that it does."""
        # A successor that came meanwhile is not foreign: it fenced the log before it created anything.
        await self._log.confirm_owner()
        if step is Step.FOREIGN and listed.newest is not None:
            # E2: also with ``adopt``, and for an older copy of the log.
            place = place_of_owner(self.identity.folder.location)
            refuse_migrated(self._source.manifest.newest, self.container, place, is_decided=True)
            await refuse_moved(self._chunks, self.container, listed.newest, place)
        chosen = self._adopt and not self._is_open
        if step is Step.EMPTY:
            # Only here: its runs may be gone, which is no reason to go on with what is another's.
            can_adopt = await self._has_no_chunk()
            if not (chosen and can_adopt):
                raise empty(self.container, can_adopt=can_adopt)

        if step is Step.ROLLED_BACK:
            await self._check_is_gone(self._known.base)
        # R11: also with ``adopt``, which would serve the container empty.
        is_empty = self._known.base == NOTHING and not self._source.sequence and not self._is_built
        if step is Step.FOREIGN and is_empty:
            raise lost_log(listed, self.container, await self._log.find_moved())
        if not chosen:
            raise mismatch(step, listed, self._known, self.container)

        listed.check_room(self.container)
        self._check_epoch(listed.epoch)
        adopted = UnconfirmedRecord(Reason.ADOPTED, listed.folder.shown)
        await self._confirmation.mark(adopted, listed.highest_version)

    async def _has_no_chunk(self) -> bool:
        try:
            return await self._source.some_chunk() is None
        except (Unavailable, DataCorruption):
            return False  # They cannot be read; there may be some.

    async def _check_is_gone(self, position: Position) -> None:
        """A listing alone does not prove that long-term storage was put back, so the element is read."""
        with suppress(ChunkNotFound):
            if (await read_element(self._chunks, self.container, position.n)).position == position:
                raise _hidden(element_name(self.container, position.n))

    def _check_epoch(self, epoch: int) -> None:
        if epoch >= self.epoch:
            raise ClaimOutdated(
                f"container {self.container} was claimed with epoch {epoch}, not below this owner's "
                f"{self.epoch}: it is opened again with a higher one"
            )

    # --- the first element -----------------------------------------------------------------------

    async def _check_folder(self, listed: ListedChain) -> None:
        """The container is unconfirmed, durably, if the last owner had another folder (rule G4)."""
        if self._folder_checked or not listed.continues(self._known):
            return

        # Once: an operator may confirm before there is room for an element.
        self._folder_checked = True
        moved = moved_from(self._source.manifest, listed, self.identity.folder)
        if moved is not None and self._confirmation.unconfirmed is None:
            await self._confirmation.mark(moved)
        elif moved is not None:
            await self._confirmation.begin_history()

    async def _check_beginning(self, listed: ListedChain) -> None:
        """Before the first element of a chain: long-term storage is not the empty folder of a missing mount,
        and no other folder of an earlier version has it (rule J12)."""
        if self._known.base != NOTHING:
            return

        records = self._source.claim_records()
        if not listed.claims and listed.newest is None:
            chunk = await self._source.some_chunk()
            was_claimed = any(record.storage_claimed for record in records.values())
            if was_claimed or (chunk is not None and not await self._chunks.exists(chunk)):
                raise empty(self.container, can_adopt=False)

        if listed.claims or records:
            await self._check_claims(listed.claims)
            await leave_last_claim(self._chunks, self.container, self.identity)
            # An owner of an earlier version claims, then lists once more: one of the two finds the other.
            await self._check_claims(await list_claims(self._chunks, self.container))

    async def _check_claims(self, claims: Sequence[Claim]) -> None:
        known = {epoch: record.owner for epoch, record in self._source.claim_records().items()}
        found = find_foreign_claims(claims, known, self._history_epoch, self.identity)
        if not found:
            return

        await self._log.confirm_owner()
        newest = found[-1]
        if not self._adopt:
            raise foreign("by an earlier version", newest.epoch, newest.identity.folder.shown)

        self._check_epoch(newest.epoch)
        await self._confirmation.mark(UnconfirmedRecord(Reason.ADOPTED, newest.identity.folder.shown))

    async def _delete_old(self) -> None:
        """Delete the elements below the one before the head. Keep one more while the room of the one before
        the head is not enough for another head (rule J8)."""
        head, previous = self._source.manifest.head, self._source.manifest.previous
        if head is not None:
            is_larger = previous is not None and _blocks(previous) < _blocks(head)
            await self._old.delete_below(head.position.n - 1 - is_larger)

    def statistics(self) -> JournalStatistics:
        from .statistics import JournalStatistics

        manifest = self._source.manifest
        return JournalStatistics(
            elements=self._created,
            head=0 if manifest.head is None else manifest.head.position.n,
            newest_age_seconds=anyio.current_time() - self._counted_at if self._counted_at else 0.0,
            unconfirmed_creations=int(manifest.intent is not None),
        )
