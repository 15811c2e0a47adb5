"""Moving a store to another place (rules E1 to E7): the same store, with its id, its logs' ids, histories,
epochs, writers, transactions and backups. Exactly one of the two places can be opened at any time.

What is durable, in this order, and what a crash or a cancellation leaves after each step:

1. ``prepare``: the mark in the new place, a backup of the old store, and the objects that its backups need.
   The old store can be opened, and changed; the new place cannot. The next call copies what is new.
2. ``MIGRATED`` in the log and the chain of each container, from the first one on: the old store cannot be
   opened. The next call reopens it and does this again; ``undo`` reopens it.
3. The objects that it needs as of then; the logs of the new place, each with its first element. As before.
4. What follows in the old chain of the first container: the move can only be completed. The next call goes on
   from there.
5. The same for the other containers; the new chains; the store's record; the record of the backup is removed.
6. The new identity: the store can be opened in the new place.
7. The mark is removed from it; the next call does that.

Where the chunks stay, both places have one chain, and nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from hashlib import blake2b

import anyio
import attrs

from ...journal.manifest.chain import (
    StoredElement,
    element_name,
    list_elements,
    read_element,
    read_newest,
)
from ...journal.manifest.element import Element, Kind
from ...journal.manifest.pin_record import PINS, list_pins, pin_record_name
from ...journal.manifest.store_record import (
    MIGRATION_RECORD,
    STORE_RECORD,
    being_moved,
    check_store_record,
    ensure_store_record,
    read_store_record,
    require_store_record,
)
from ...journal.operations.log_element import LogElement
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    ChunkNotFound,
    DataCorruption,
    InvalidArgument,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.base.world import World
from ..container.container import Container
from ..container.listed_chain import decides, folder_of, named_place, place_of_owner, refuse_moved
from ..container.lts_boot import LtsBoot, claim_chain, read_boot
from ..folder.fingerprint import FINGERPRINT_BYTES
from ..folder.identity import StoreIdentity
from ..legacy_rolling.importing import Progress, no_progress
from ..store.read_only import take_snapshot
from .backup_copy import copy_backup, copy_elements
from .copied_objects import CopiedObjects, Totals
from .migration_places import Building, ChunkPlace, MigrationPlace, check_apart, list_left
from .place_of_copies import PlaceOfCopies, VerifiedObjects, reader_of

KEEP = "keep"
_PREFIX, _NAME_LENGTH = "migration-", 59
"""Of the names of backups that a move makes: with digests of the place and of where the chunks will be, and
an id."""


@attrs.frozen
class Migration:
    """How far a move is."""

    store_id: str
    source: str
    target: str
    is_complete: bool
    """Whether the store is in ``target`` now; otherwise it is where it was."""
    keeps_chunks: bool
    chunks: str
    """Where they are in the end."""
    objects: int = 0
    """Chunks and runs in the new place."""
    bytes: int = 0
    copied_objects: int = 0
    """Those that this call copied."""
    copied_bytes: int = 0
    left: tuple[str, ...] = ()
    """What of the old place nobody needs any more, once it is complete."""


@attrs.frozen(eq=False, repr=False)
class _Ended:
    """How the chain of a container ends in the old place."""

    migrated: StoredElement | None = None
    """Where the container ended there; None if it goes on."""
    decision: StoredElement | None = None
    """What follows once it can only go on at the new place."""
    newest: StoredElement | None = None


async def migrate(
    source: MigrationPlace,
    target: MigrationPlace,
    world: World,
    *,
    confirms: bool,
    chunks: str = "",
    progress: Progress = no_progress,
) -> Migration:
    """Prepare the move of a store from ``source`` to ``target`` and, with ``confirms``, complete it.
    ``chunks``: where they will be; ``KEEP``: where they are; empty: where ``target`` has them.

    Raises ``ConfigError`` (the chunks cannot be there, or nothing says where), ``InvalidArgument`` (no store,
    a process has it open, places that overlap, a target with something else), ``StoreMismatch`` (it was moved
    elsewhere, or the target is another store's), ``DataCorruption`` (the source is damaged), ``StorageFull``,
    ``Unavailable``, ``Unsupported``."""
    async with source.connected():
        identity, own = await _identity_of(source), await source.chunks()
        if chunks:
            chunks, s3 = (own.shown, own.location.s3) if chunks == KEEP else (chunks, None)
            target.choose_chunks(chunks, s3)
            # Before the target is asked, which may refuse such a place with a worse reason.
            list_left(source, own, [chunks])
        async with target.connected():
            new = await target.new_chunks()
            check_apart(source, own, target, new)
            move = _Move(source, target, identity, own, new, world, progress)
            return await move.run(confirms=confirms)


async def undo(source: MigrationPlace) -> bool:
    """Give a move up that was not completed: the store in ``source`` can be opened again. Returns whether
    there was one. Raises ``StoreMismatch`` if it can only be completed."""

    async def had_ended(container: Container) -> bool:
        return container.had_migrated

    async with source.connected():
        await _identity_of(source)
        # E3: its ``Open`` takes the number of the element that would decide the move, or is refused.
        async with source.opened(migrates=True) as store:
            own = [backup.name for backup in await store.backups() if _is_own(backup.name)]
            for name in own:
                await store.remove_backup(name)
            ended = [await store.on_container(index, had_ended) for index in range(store.containers)]
    return bool(own) or any(ended)


async def _list_own(chunks: ChunkStorage) -> list[str]:
    """The names of the backups that moves have made."""
    found = [info.name.removeprefix(PINS) async for info in chunks.list(f"{PINS}{_PREFIX}")]
    return [name for name in found if _is_own(name)]


def _is_own(backup: str) -> bool:
    return backup.startswith(_PREFIX) and len(backup) == _NAME_LENGTH


async def _identity_of(source: MigrationPlace) -> StoreIdentity:
    identity = await source.identity()
    if identity is None:
        raise InvalidArgument(f"there is no store in {source.shown}")
    return identity


async def _read_end(chunks: ChunkStorage, index: int, place: str) -> _Ended:
    """``place``: where the container is moved to, as a command takes it. A machine may have another name than
    when the move began (rule E7)."""
    newest = await read_newest(chunks, index, await list_elements(chunks, index))
    if newest is None:
        return _Ended()

    # If the element before is deleted, an owner has gone on.
    with suppress(ChunkNotFound):
        if before := newest.element.predecessor.n:
            migrated = await read_element(chunks, index, before)
            is_here = named_place(migrated.element.owner.location) == place
            if is_here and decides(newest.element, migrated.element):
                return _Ended(migrated, newest, newest)
    return _Ended(newest if newest.element.kind is Kind.MIGRATED else None, None, newest)


class _Move:
    def __init__(
        self,
        source: MigrationPlace,
        target: MigrationPlace,
        identity: StoreIdentity,
        own: ChunkPlace,
        new: ChunkPlace,
        world: World,
        progress: Progress,
    ) -> None:
        self._source, self._target = source, target
        self._identity = identity
        self._own, self._new = own, new
        self._copies = own.shown != new.shown
        self._world = world
        self._progress = progress
        self._totals = Totals()
        self._to_this_place = f"{_PREFIX}{_digest(target.shown)}"
        self._backups = f"{self._to_this_place}{_digest(new.shown)}-"

    async def run(self, *, confirms: bool) -> Migration:
        ends = await self._read_ends()
        if (found := await self._target.identity()) is not None:
            return await self._run_again(found, ends)

        if not any(ended.decision for ended in ends):
            # E6: whatever refuses the move leaves nothing in the new place.
            await self._check_no_other(ends)
            await self._source.check_closed()
            await self._target.check_target(self._identity, self._new)
        async with self._target.building(self._identity, self._new) as building:
            if not any(ended.decision for ended in ends):
                await self._begin()
                # One that is ended there already was prepared.
                if not (confirms and any(ended.migrated for ended in ends)):
                    await self._prepare(migrates=confirms)
                if not confirms:
                    return self._report(is_complete=False)
                ends = await self._end_source()
            await self._complete(building, ends)
        return self._report(is_complete=True)

    def _report(self, *, is_complete: bool) -> Migration:
        needed = [self._new.shown, *self._target.roots()]
        left = list_left(self._source, self._own, needed) if is_complete else []
        return Migration(
            self._identity.store_id.hex(),
            self._source.shown,
            self._target.shown,
            is_complete,
            not self._copies,
            self._new.shown,
            self._totals.objects,
            self._totals.bytes,
            self._totals.copied_objects,
            self._totals.copied_bytes,
            tuple(left),
        )

    async def _read_ends(self) -> list[_Ended]:
        async with self._own.reader() as chunks:
            place = self._target.named
            return [await _read_end(chunks, index, place) for index in range(self._identity.containers)]

    async def _run_again(self, found: StoreIdentity, ends: Sequence[_Ended]) -> Migration:
        """There is a store. Raises ``InvalidArgument`` unless it is this one, after the move, and as
        ``_refuse_moved``."""
        if found != self._identity or not all(self._goes_on(ended, self._target) for ended in ends):
            async with self._own.reader() as chunks:
                await self._refuse_moved(chunks, ends)
            moved = await self._moved_away(found, ends)
            raise InvalidArgument(f"{self._target.shown} has a store already: {moved}name an empty place")
        if self._copies:
            async with self._new.writer() as chunks:
                await _remove_mark(chunks)
        return self._report(is_complete=True)

    def _goes_on(self, ended: _Ended, place: MigrationPlace) -> bool:
        """Whether the container is in ``place`` now. One chain of both places shows where it was opened
        last."""
        if place is self._target and (ended.decision or self._copies):
            return ended.decision is not None
        newest = None if ended.newest is None else ended.newest.element
        return (
            newest is not None
            and newest.kind is not Kind.MIGRATED
            and place.named in (named_place(newest.owner.location), place_of_owner(newest.owner.location))
        )

    async def _moved_away(self, found: StoreIdentity, ends: Sequence[_Ended]) -> str:
        """What to do if the store that is in the target is this one, as it was before it was moved from
        there."""
        if found != self._identity:
            return ""
        theirs = await self._target.chunks()
        keeps, place = theirs.shown == self._own.shown, ""
        if keeps:
            place = self._source.shown if all(self._goes_on(each, self._source) for each in ends) else ""
        else:
            async with theirs.reader() as chunks:
                end = (await _read_end(chunks, 0, self._source.shown)).migrated
            place = "" if end is None else folder_of(end.element).shown
        if not place:
            return ""
        left = ", ".join(list_left(self._target, theirs, [self._own.shown, *self._source.roots()]))
        return f"it is the one that was moved to {place}. Once you have seen it there, delete {left}, or "

    async def _check_no_other(self, ends: Sequence[_Ended]) -> None:
        """Rule E7: raises ``StoreMismatch`` if the store was moved to another place, completely or not,
        ``InvalidArgument`` if such a move is prepared."""
        async with self._own.reader() as chunks:
            await self._refuse_moved(chunks, ends)
            for backup in await _list_own(chunks):
                if not backup.startswith(self._backups):
                    raise self._other_move(backup)

    async def _refuse_moved(self, chunks: ChunkStorage, ends: Sequence[_Ended]) -> None:
        """Raises ``StoreMismatch`` if a container ended for another place, which that names."""
        for index, ended in enumerate(ends):
            if ended.migrated is not None and ended.migrated.element.owner.location != self._target.shown:
                await refuse_moved(chunks, index, ended.migrated, self._source.named)

    def _other_move(self, backup: str) -> InvalidArgument:
        """The name of its backup shows whether the place is the same."""
        to, options = f"to another place than {self._target.shown}", "--to and --chunks"
        if backup.startswith(self._to_this_place):
            to, options = (
                f"to this place, but with its chunks elsewhere than in {self._new.shown}",
                "--chunks",
            )
        return InvalidArgument(
            f"a move of this store is prepared {to} (backup {backup}): complete it with the same {options} "
            f"as before, or give it up with `tierlog migrate {self._source.named} --undo` and delete what it "
            f"has copied there"
        )

    async def _begin(self) -> None:
        """Mark the new place, whose chunks are to be those of the store. Raises ``StoreMismatch`` if it is
        marked for another one, ``InvalidArgument`` if there are others."""
        if not self._copies:
            return
        identity = self._identity
        async with self._new.writer(create=True) as chunks:
            if not await self._has_mark(chunks):
                try:
                    await self._refuse_others(chunks)
                except InvalidArgument:
                    # E5: another process may have begun this move meanwhile.
                    if not await self._has_mark(chunks):
                        raise
            # With the trial whether it creates conditionally (rule J10).
            await ensure_store_record(chunks, identity.store_id, identity.containers, name=MIGRATION_RECORD)

    async def _has_mark(self, chunks: ChunkStorage) -> bool:
        """Raises ``StoreMismatch`` if it is that of another store, ``InvalidArgument`` if it is damaged."""
        try:
            mark = await read_store_record(chunks, MIGRATION_RECORD)
        except DataCorruption as error:
            raise InvalidArgument(
                f"{self._new.shown}/{MIGRATION_RECORD}, the mark of a move, is damaged ({error.reason}): "
                f"name another place, after `tierlog migrate {self._source.named} --undo` if it is this "
                f"move's"
            ) from error
        if mark is not None and mark.store != self._identity.store_id:
            raise being_moved(self._target.named, mark.store)
        return mark is not None

    async def _refuse_others(self, chunks: ChunkStorage) -> None:
        await self._new.refuse_nested()
        async with aclosing(chunks.list("")) as infos:
            async for info in infos:
                raise InvalidArgument(
                    f"{self._new.shown} has other objects, such as {info.name}: name an empty place"
                )

    # --- the copy --------------------------------------------------------------------------------

    async def _prepare(self, *, migrates: bool) -> None:
        """Copy what the store has now. It may go on meanwhile: a backup keeps what is copied."""
        name = f"{self._backups}{self._world.new_id()}"
        async with self._source.opened(migrates=migrates) as store:
            await store.flush()
            if not self._copies:
                return
            await store.backup(name)
            for backup in await store.backups():
                if backup.name != name and backup.name.startswith(self._backups):
                    await store.remove_backup(backup.name)
        async with self._own.reader() as source, self._new.writer() as target:
            await self._copy_backups(source, target)
            await self._forget_backups(target, but=name)

    async def _copy_backups(self, source: ChunkStorage, target: ChunkStorage) -> None:
        """All that the store has now are there afterwards, each verified (rule P7)."""
        for backup in await list_pins(source):
            if backup.problem:
                raise DataCorruption(
                    f"backup {backup.name!r} cannot be copied: {backup.problem}. Remove it, or make it again",
                    file=pin_record_name(backup.name),
                )
            copied = await copy_backup(source, backup.name, target, self._progress, is_alone=False)
            self._count(attrs.asdict(copied))

    def _count(self, totals: dict[str, int]) -> None:
        # Several backups have the same objects, so the largest number is about how many there are.
        self._totals.objects = max(self._totals.objects, totals["objects"])
        self._totals.bytes = max(self._totals.bytes, totals["bytes"])
        self._totals.copied_objects += totals["copied_objects"]
        self._totals.copied_bytes += totals["copied_bytes"]

    async def _forget_backups(self, target: ChunkStorage, but: str = "") -> None:
        """Remove the records of the backups that this move has made from the new place, but for one; without
        that, those of all moves."""
        names = [name for name in await _list_own(target) if not but or name.startswith(self._backups)]
        for name in names:
            if name != but:
                with suppress(ChunkNotFound):
                    await target.delete(pin_record_name(name))

    async def _copy_all(self, ended: Sequence[StoredElement]) -> None:
        async with self._own.reader() as source, self._new.writer() as target:
            await self._copy_backups(source, target)
            objects = CopiedObjects(source, target, "migration", self._progress, rereads=False)
            verified = VerifiedObjects(target)
            await verified.choose(PlaceOfCopies(target, len(ended)).records(), "")
            await copy_elements(
                source, ended, objects, verified, lambda index: element_name(index, ended[index].n)
            )
            self._count(attrs.asdict(objects.totals))

    # --- the move --------------------------------------------------------------------------------

    async def _end_source(self) -> list[_Ended]:
        """End each container in the old place, all of it flushed (rule E1), and copy what it ended with."""

        async def end(container: Container) -> StoredElement:
            return await container.migrate(self._target.shown)

        async with self._source.opened(migrates=True) as store:
            ended = [await store.on_container(index, end) for index in range(store.containers)]
        if self._copies:
            await self._copy_all(ended)
        return [_Ended(each) for each in ended]

    async def _complete(self, building: Building, ends: Sequence[_Ended]) -> None:
        async with AsyncExitStack() as stack:
            source = await stack.enter_async_context(self._own.writer())
            target = await stack.enter_async_context(self._new.writer()) if self._copies else source
            claims = await self._build_logs(building, ends, target)
            await building.fix_chunks()
            for index, (ended, claim) in enumerate(zip(ends, claims, strict=True)):
                if ended.decision is None:
                    # E4: from the first one on there is no way back.
                    await self._decide(source, index, self._decision(claim))
            if self._copies:
                await self._put_chains(ends, claims, source, target)
                await self._forget_backups(target)
            await building.publish()
            if self._copies:
                await _remove_mark(target)

    async def _build_logs(
        self, building: Building, ends: Sequence[_Ended], target: ChunkStorage
    ) -> list[LogElement]:
        """Make the logs of the new place, and read them back. Returns the element that each begins with."""
        boots: list[LtsBoot] = []
        for index, ended in enumerate(ends):
            where = None if ended.migrated is None else named_place(ended.migrated.element.owner.location)
            if ended.migrated is None or where != self._target.named:
                raise _not_moved_here(self._source, self._target, index)
            boot = await read_boot(index, ended.migrated, ended.migrated.element, reader_of(target))
            if found := boot.published.inconsistencies:
                raise DataCorruption(
                    f"not all that it publishes is of one moment: {found[0].segment}: {found[0].message}",
                    file=element_name(index, ended.migrated.n),
                )
            boots.append(boot)
        return [
            await self._build_log(building, boot, ended.decision, target)
            for boot, ended in zip(boots, ends, strict=True)
        ]

    async def _build_log(
        self, building: Building, boot: LtsBoot, known: StoredElement | None, target: ChunkStorage
    ) -> LogElement:
        index, log = boot.container, building.log(boot.container)
        is_complete = False
        try:
            opened = await log.open(above=boot.newest.element.epoch)
            # E5: after the log was opened, which fences whoever had it. What is there now has no owner's
            # groups, or is refused.
            if await self._target.identity() is not None:
                raise Unavailable(
                    f"another process has completed the move to {self._target.shown} meanwhile: open the "
                    f"store there"
                )
            claim = LogElement.of(attrs.evolve(known.element, kind=Kind.OPEN) if known else _claim(boot))
            await boot.go_on(log, claim, opened.epoch)
            is_complete = True
        finally:
            with anyio.CancelScope(shield=True):
                await log.close(clean=is_complete)
        found = await take_snapshot(index, building.log(index), target, reader_of(target))
        if found.state.manifest.known.base != claim.position:
            raise DataCorruption(
                "the log that was made does not read as it was written", file=self._target.shown
            )
        return claim

    async def _decide(self, source: ChunkStorage, index: int, decision: LogElement) -> None:
        try:
            await claim_chain(source, index, decision)
        except StoreMismatch:
            # E5: another process that is at the same move has made the same one.
            found = (await _read_end(source, index, self._target.named)).decision
            if found is None or found.position != decision.position:
                raise

    def _decision(self, claim: LogElement) -> LogElement:
        """What follows in the old chain: the same element, but if the new place has a chain of its own, one
        that nobody can go on from."""
        return LogElement.of(attrs.evolve(claim.element, kind=Kind.MIGRATED)) if self._copies else claim

    async def _put_chains(
        self,
        ends: Sequence[_Ended],
        claims: Sequence[LogElement],
        source: ChunkStorage,
        target: ChunkStorage,
    ) -> None:
        objects = CopiedObjects(source, target, "migration", self._progress, rereads=False)
        for index, (ended, claim) in enumerate(zip(ends, claims, strict=True)):
            before = [LogElement.of(ended.migrated.element)] if ended.migrated else []
            for op in (*before, claim):
                await objects.put(element_name(index, op.position.n), [op.content])
        record = await require_store_record(source)
        check_store_record(record, self._identity.store_id, self._identity.containers)
        await objects.put(STORE_RECORD, [record.encode()])


def _claim(boot: LtsBoot) -> Element:
    """The first element of the new place. It has the owner's id of the element before (rule E4), and nothing
    of who makes it (rule E5)."""
    migrated = boot.newest.element
    return attrs.evolve(
        migrated,
        n=migrated.n + 1,
        kind=Kind.OPEN,
        epoch=migrated.epoch + 1,
        # Without a fingerprint: the folder is made again if the move is cut off.
        owner=attrs.evolve(migrated.owner, folder=bytes(FINGERPRINT_BYTES)),
        predecessor=boot.newest.position,
    )


def _digest(place: str) -> str:
    return blake2b(place.encode(), digest_size=4).hexdigest()


async def _remove_mark(target: ChunkStorage) -> None:
    with suppress(ChunkNotFound):
        await target.delete(MIGRATION_RECORD)


def _not_moved_here(source: MigrationPlace, target: MigrationPlace, container: int) -> StoreMismatch:
    return StoreMismatch(
        f"container {container} of the store in {source.shown} was not moved to {target.shown}: name the "
        f"place that it was moved to"
    )
