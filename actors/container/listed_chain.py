"""The chain of elements as it was listed, and why an owner that finds it refuses to go on (rules J6, J12)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from shlex import quote

from msgspec import Struct

from ...journal.manifest.chain import (
    StoredElement,
    check_end,
    element_name,
    journal_prefix,
    list_elements,
    read_element,
    read_newest,
)
from ...journal.manifest.element import NOTHING, Element, Kind, Position
from ...journal.manifest.rules import Known, Step, decide
from ...journal.manifest.store_record import other_store
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption, StoreMismatch, Unavailable
from ...storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord
from ..folder.fingerprint import Fingerprint
from ..folder.place import is_shared
from ..telemetry.printable import printable
from .claims import Claim, list_claims
from .manifest_state import ManifestState

_ADOPT = (
    "adopt it, with open_store(adopt=True), `tierlog serve --adopt` or `tierlog host --join PLACE --adopt`"
)
OURS = (Step.CREATE_NEXT, Step.CREATE_AGAIN, Step.CONFIRM)
"""What a check finds if no other history has gone on."""


def folder_of(element: Element) -> Fingerprint:
    return Fingerprint(element.owner.folder, element.owner.location)


def named_place(location: str) -> str:
    """As a command takes it: without the host that elements have in front."""
    return (location if is_shared(location) else location.partition(":")[2]).rstrip("/")


def place_of_owner(location: str) -> str:
    """As ``named_place``, of an owner's location, which for a store in a folder is its ``wal/``."""
    place = named_place(location)
    return place.removesuffix("/wal") if place.startswith("/") else place


class ListedChain(Struct, frozen=True, eq=False):
    """The chain as it was listed."""

    newest: StoredElement | None
    numbers: Sequence[int] = ()
    claims: Sequence[Claim] = ()
    """Claims of earlier versions, if there is no element."""

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
    def highest_version(self) -> int:
        """The highest version of a row that the newest element knows."""
        return 0 if self.newest is None else self.newest.element.progress.highest_version

    @property
    def leaves_room(self) -> bool:
        """Whether another history can go on above it."""
        return self.newest is None or self.newest.element.leaves_room

    def check_room(self, container: int) -> None:
        """Raises ``DataCorruption`` if no history can go on above the newest element: it is no owner's."""
        if self.newest is not None and not self.leaves_room:
            name = element_name(container, self.newest.n)
            raise DataCorruption("no history can go on above its numbers", file=name, offset=0)

    @property
    def stores(self) -> set[bytes]:
        """The stores that the chain and the claims belong to."""
        found = {claim.identity.store for claim in self.claims}
        return found if self.newest is None else {*found, self.newest.element.owner.store}

    def continues(self, known: Known) -> bool:
        """Whether nobody else went on since (rule J6)."""
        return decide(known, self.position) in OURS

    def check(self, known: Known, store: bytes, container: int, *, is_empty: bool) -> None:
        """Raises what stops an owner that knows ``known`` (rule J6): ``StoreMismatch``, ``Unavailable``.
        ``is_empty``: its log holds nothing."""
        self.check_store(store)
        match decide(known, self.position):
            case Step.FOREIGN if is_empty:
                raise lost_log(self, container)  # R11: to adopt an empty log is no advice to give.
            case Step.EMPTY:
                # Whether the folder could be adopted without a loss is known to an opening only.
                raise empty(container, can_adopt=False)
            case Step.FOREIGN | Step.ROLLED_BACK as step:
                raise mismatch(step, self, known, container)

    def check_between(
        self, before: Known, after: Known, store: bytes, container: int, *, is_empty: bool
    ) -> None:
        """As ``check``, beside an owner at work: the chain was listed between two readings of its log.

        An element that the log knew before exists, and one that exists is known to the log after. What only
        one of the two readings contradicts, the owner did meanwhile."""
        self.check_store(store)
        if decide(before, self.position) is decide(after, self.position):
            self.check(before, store, container, is_empty=is_empty)

    def check_store(self, store: bytes) -> None:
        """Raises ``StoreMismatch`` if long-term storage is another store's."""
        for other in self.stores - {store}:
            raise other_store(other, store)

    @property
    def folder(self) -> Fingerprint:
        """The last owner's folder."""
        if self.newest is not None:
            return folder_of(self.newest.element)

        return self.claims[-1].identity.folder if self.claims else Fingerprint()


async def list_chain(chunks: ChunkStorage, container: int) -> ListedChain:
    """The chain as it is now, for those who do not own the container. Raises ``DataCorruption`` if what has
    the name of an element, the newest one or the one above it, is none."""
    numbers = await list_elements(chunks, container)
    newest = await read_newest(chunks, container, numbers)
    if newest is not None:
        await check_end(chunks, container, newest.n)
    return ListedChain(newest, numbers, () if newest else await list_claims(chunks, container))


def mismatch(step: Step, listed: ListedChain, known: Known, container: int) -> StoreMismatch:
    """Why an owner does not go on when it finds this (rule J6)."""
    found = listed.position.n
    if step is Step.ROLLED_BACK:
        return StoreMismatch(
            f"long-term storage lacks {element_name(container, known.base.n)}, which the log knows; it has "
            f"elements up to {found}: it was put back to an earlier state. Put its newest state in place; if "
            f"that is lost, {_ADOPT}"
        )

    return foreign(f"with element {found}", listed.epoch, listed.folder.shown)


def foreign(how: str, epoch: int, location: str) -> StoreMismatch:
    owner = f" by {location}" if location else ""
    return StoreMismatch(
        f"long-term storage was claimed {how} in epoch {epoch}{owner}, of which this log has no record: "
        f"the folder is a copy or an old backup, or a copy of it was opened. Close both and go on with the "
        f"newest one; if that is this one, {_ADOPT}"
    )


def lost_log(listed: ListedChain, container: int, moved: Sequence[str] = ()) -> StoreMismatch:
    """The log holds nothing, and the chain was there before it. ``moved``: where recoveries of the container
    moved its logs."""
    place, element = place_of_owner(listed.folder.location), f"element {listed.position.n}"
    if place and not place.startswith("/"):
        return StoreMismatch(
            f"container {container}: its log is lost. The one at {place} holds nothing, and long-term "
            f"storage has {element} in epoch {listed.epoch}. Put the log back, whole. If it is gone, "
            f"stop the store and recover all of it as of its last full flushes, into a data folder (`tierlog "
            f"recover --from-lts --data FOLDER --chunks LOCATION`), which `tierlog migrate` moves elsewhere"
        )

    where = f": it may be {' or '.join(moved)}, if a recovery was killed" if moved else ""
    return StoreMismatch(
        f"container {container}: its log is lost. The one in wal/ holds nothing, and long-term storage has "
        f"{element} in epoch {listed.epoch}, by {listed.folder.shown}. Put the folder of "
        f"the log back{where}. If it is gone, stop the store and recover this container as of its last full "
        f"flush (`tierlog recover --from-lts --container {container}`, `tierlog serve --recover-from-lts`, "
        f"or open_store(recover_from_lts=True)); the others go on with their logs"
    )


def refuse_migrated(
    element: Element | None, container: int, place: str = "", *, is_decided: bool | None = None
) -> None:
    """Raises ``StoreMismatch`` if this, the newest element that is known, says that the container goes on at
    another place than ``place``, which is as a command takes it (rule E2). ``is_decided``: whether that
    cannot be given up any more (rule E4), if it is known."""
    if element is None or element.kind is not Kind.MIGRATED:
        return

    there = folder_of(element)
    old, new = quote(printable(place)), quote(named_place(there.shown))
    # Where the chunks are to be is known to the first call only.
    again, chunks = f"tierlog migrate {old} --to {new}", "with `--chunks` as at first,"
    remedy = ""
    if place and is_decided:
        remedy = (
            f". The move is decided and cannot be undone: if it was interrupted, `{again}`, {chunks} "
            f"completes it. Then `tierlog migrate {new} --to PLACE` moves the store back, to an empty place"
        )
    elif place and is_decided is False:
        remedy = (
            f". The move is not complete: `{again} --confirm`, {chunks} goes on with it, and "
            f"`tierlog migrate {old} --undo` gives it up"
        )
    raise _moved(container, there, remedy)


def _moved(container: int, there: Fingerprint, remedy: str = "") -> StoreMismatch:
    return StoreMismatch(f"container {container} was moved to {there.shown}: open the store there{remedy}")


async def refuse_moved(
    chunks: ChunkStorage, container: int, newest: StoredElement | None, place: str = ""
) -> None:
    """As ``refuse_migrated``, if this is the newest element of the chain in ``chunks``."""
    if newest is None or newest.element.kind is not Kind.MIGRATED:
        return

    is_decided: bool | None = None
    with suppress(ChunkNotFound, Unavailable, DataCorruption):
        before = await read_element(chunks, container, newest.element.predecessor.n)
        is_decided = decides(newest.element, before.element)
    refuse_migrated(newest.element, container, place, is_decided=is_decided)


async def refuse_older_log(chunks: ChunkStorage, container: int, known: Known) -> None:
    """Raises ``StoreMismatch`` if the chain in ``chunks`` shows that the container goes on at another place,
    although the log of a data folder, which knows ``known``, is from before that move (rule E2)."""
    newest = await read_newest(chunks, container, await list_elements(chunks, container))
    await refuse_moved(chunks, container, newest)
    if newest is None or decide(known, newest.position) is not Step.FOREIGN:
        return

    # E4: the chunks stayed, and so did the chain.
    there = folder_of(newest.element)
    if is_shared(there.location):
        raise _moved(container, there)


def decides(element: Element, before: Element) -> bool:
    """Whether ``element`` decided the move that was begun with ``before``, which it follows (rule E4). Who
    gives it up has an owner's id of its own."""
    return (
        before.kind is Kind.MIGRATED
        and element.kind in (Kind.MIGRATED, Kind.OPEN)
        and element.owner.owner == before.owner.owner
    )


def empty(container: int, *, can_adopt: bool) -> Unavailable:
    """``can_adopt``: nothing is lost if long-term storage is used as it is."""
    on_purpose = f"; if it was emptied on purpose, {_ADOPT}" if can_adopt else ""
    return Unavailable(
        f"long-term storage is empty: it has no element of container {container}; "
        f"{journal_prefix(container)} has none, or is no folder. Mount it; if it is lost, restore a "
        f"backup (`tierlog restore`){on_purpose}"
    )


def moved_from(manifest: ManifestState, listed: ListedChain, folder: Fingerprint) -> UnconfirmedRecord | None:
    """The record of a container whose last owner had another folder (rule G4); None if it had ``folder``.
    Ask only if ``listed`` continues what the log knows."""
    last = listed.folder if manifest.intent is None else folder_of(manifest.intent.element)
    return UnconfirmedRecord(Reason.MOVED, last.shown) if last.differs_from(folder) else None
