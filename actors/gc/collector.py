"""The collector: deletes chunks that nothing refers to, after a delay, and only while this is the owner.

Owns: the queue of garbage in memory, its delay, and the names of transactions under way. It is the
``GarbageSink`` of chunked storage. Does not own: what is garbage (``rules.py``).

The queue is not durable: an opening rebuilds it from a listing, so that a crash leaks nothing. A listing
counts only after a check of the chain: long-term storage may not be mounted (rule G5). The listing is
repeated twice, for chunks that a dead owner's late put creates after the first one (rule G5), whenever names
found no room in the queue, which is bounded (rule G2), and when a backup ends: what it keeps is not queued
(rule P4). Files outside the container's prefix are not in that listing. A durable record names each of them
that was released (rules G3, S19); the collector deletes the file and then its record, one commit per batch.

A chunk is deleted only when long-term storage alone does not need it any more: the newest element that counts
has the removal of its record, or all that it names of the chunk was truncated (rule G6). Those that wait for
this ask for an element.

Order (rules G1, J9): decide by durable state; create an element of the chain, because of a folder and
its copy neither may delete what the other needs (if each name had its element at an earlier attempt, check
the chain; without room for an element, wait); append a barrier to the log; delete only once that is
durable under this owner's epoch. An unconfirmed container deletes nothing (rule G4). A missing chunk is done.
A failed delete is tried again, ``attempts`` times after the delay and then ever more rarely
(``retry_later.py``). One slow or failing name does not hold up the others of its batch (rule G2).

Cancellation and crash: the next owner finds what was not deleted in its listing or in the records, and
removes records whose file is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from msgspec import Struct
from msgspec.structs import replace

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import CLAIM_REFUSED, ChunkNotFound, NotOwner, StorageFull, TierlogError
from ...storage_backends.base.sharded_dict import ShardedDict
from ..kernel.slices import in_slices
from ..telemetry.logging import get_logger
from .garbage_queue import GarbageQueue
from .garbage_total import GarbageTotal, count_garbage, list_parts
from .retry_later import RetryLater
from .rules import Garbage, creator_of, is_ready, is_run, orphans
from .source import CollectorSource
from .tasks import GcTask, TaskState, task_of

if TYPE_CHECKING:
    from .statistics import CollectorStatistics

_log = get_logger("gc")

_TAKEN = 128
"""Names that one step of the event loop takes from the queue or from a listing, at most."""
_DELETED_AT_ONCE = 32
"""Names in one call, where the storage takes several: a call that hangs holds up no more than these."""
_NAMED = 10
"""The most chunks that one log event names."""


class CollectorOptions(Struct, frozen=True):
    delay: float = 60.0
    """Seconds between release and deletion, at least."""
    attempts: int = 3
    concurrent_deletes: int = 10
    batch: int = 1000
    """Names deleted after one proof of ownership, at most."""
    listings: Sequence[float] = (0.0, 900.0, 86_400.0)
    """When this ownership lists chunks of dead owners, in seconds from its begin (rule G5)."""
    retry_pause: float = 300.0
    """Seconds until names whose deletion failed ``attempts`` times are tried again. It doubles while every
    delete fails."""
    retry_pause_max: float = 3_600.0
    names_max: int = 100_000
    """Names in memory that wait for their deletion, at most; more are found by a listing once there is room.
    And names whose deletion failed repeatedly, at most; more are left to the next opening."""


class Collector:
    def __init__(self, chunks: ChunkStorage, source: CollectorSource, options: CollectorOptions) -> None:
        self._chunks = chunks
        self._source = source
        self._options = options
        self._queue = GarbageQueue()
        self._attempts: ShardedDict[str, int] = ShardedDict()
        self._retry_later = RetryLater(options.retry_pause, options.retry_pause_max, options.names_max)
        self._unlogged: dict[str, TierlogError] = {}
        self._open: ShardedDict[str, None] = ShardedDict()
        self._unpublished: list[Garbage] = []
        """What waits for an element that counts (rule G6)."""
        self._published: list[Garbage] = []
        """What waited for one that counts now, and is not in its queue yet."""
        self.is_paused = False
        self._asks_at = 0.0
        """When an element may be asked for again."""
        self._wake = anyio.Event()
        self._listings: list[float] = []
        """When the next listings are due."""
        self._has_left_out = False
        """Whether there are names to be found besides: since the last listing began some found no room in
        the queue, or a backup ended."""
        self._lists_own = False
        """Whether listings include this owner's names too, because they may be the only trace of some."""
        self._lists_at = 0.0
        """When a listing that failed may be tried again."""
        self._is_history_checked = False
        self._waits_for_room = False
        self._lacks_records = False
        """Whether records could not be read when they were last looked up."""
        self._deleted = self._gone = self._retried = self._given_up = self._orphans = 0
        self._released = self._tried = self._postponed = 0
        self._seconds = 0.0

    # --- GarbageSink -----------------------------------------------------------------------------

    async def track(self, names: Sequence[str]) -> None:
        """Nothing durable is needed: a successor's listing finds the chunks of a dead owner."""
        self._open.update(dict.fromkeys(names))

    def keep(self, names: Sequence[str]) -> None:
        for name in names:
            self._open.pop(name, None)

    def release(self, names: Sequence[str]) -> None:
        now = anyio.current_time()
        self._released += len(names)
        for name in names:
            self._open.pop(name, None)
            self._add(Garbage(name, now + self._options.delay, now))
        if names:
            self._wake.set()

    def _add(self, garbage: Garbage) -> None:
        if len(self._queue) < self._options.names_max or garbage.name in self._queue:
            self._queue.put(garbage)
        else:
            self._has_left_out = self._lists_own = True

    def _forget(self, name: str) -> None:
        self._queue.drop(name)
        self._attempts.pop(name, None)

    def doubt(self, names: Sequence[str]) -> None:
        """A commit of unknown outcome ends this ownership. Its names stay in ``_open``; the next owner finds
        out which of them are garbage."""

    # --- the writer's side -----------------------------------------------------------------------

    def published(self) -> None:
        """An element counts that a flush cycle has made."""
        self._published += self._unpublished
        self._unpublished = []
        self._wake.set()

    # --- for operators ---------------------------------------------------------------------------

    def tasks(self, limit: int) -> list[GcTask]:
        """Some of the names that wait for their deletion."""
        now = anyio.current_time()
        unpublished = {garbage.name for garbage in self._unpublished}
        is_confirmed = self._source.is_confirmed
        states = {True: TaskState.ELEMENT, False: TaskState.DELAY}
        return [
            task_of(each, states[each.name in unpublished] if is_confirmed else TaskState.CONFIRMATION, now)
            for each in self._queue.some(limit)
        ]

    def failed_tasks(self, limit: int) -> list[GcTask]:
        """Some of the names whose deletion failed repeatedly, in order."""
        now = anyio.current_time()
        return [task_of(each, TaskState.FAILED, now) for each in islice(self._retry_later, limit)]

    def retry_failed(self) -> int:
        """Try what failed again now; returns how many names."""
        self._retry_later.make_due(anyio.current_time())
        self._wake.set()
        return len(self._retry_later)

    def purge_failed(self) -> int:
        """Forget what failed; returns how many names. A later listing finds those that are still there."""
        count = len(self._retry_later)
        self._given_up += count
        self._lists_own |= count > 0
        self._retry_later.clear()
        return count

    def pause(self) -> None:
        """Begin no deletion and no listing until ``resume`` (rule G2); a batch under way goes on."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._wake.set()

    def list_soon(self) -> None:
        """List long-term storage now, and once more as later listings are due (rule G5)."""
        self._listings.insert(0, anyio.current_time())
        self._wake.set()

    def list_own(self) -> None:
        """List long-term storage soon, this owner's names included: some became garbage and were not
        released."""
        self._has_left_out = self._lists_own = True
        self._wake.set()

    # --- collecting ------------------------------------------------------------------------------

    async def run(self, request_element: Callable[[], None]) -> None:
        """Find what dead owners left, then delete what becomes ready, until cancelled.

        ``request_element()`` asks for an element with the rows that no element has yet; ``published`` is
        called then.
        """
        await self._source.wait_confirmed()
        # From records, so it needs no listing and works while long-term storage is down.
        await self._take_over(await self._released_names())
        begin = anyio.current_time()
        self._listings = [begin + seconds for seconds in self._options.listings]
        while True:
            await self._source.wait_confirmed()
            self._wake = anyio.Event()
            if self.is_paused:
                await self._wake.wait()
                continue

            # If long-term storage does not answer, the end of a later cycle is the moment to list it.
            if self._is_listing_due():
                is_listed, now = await self._find_orphans(), anyio.current_time()
                if is_listed:
                    self._listings = [at for at in self._listings if at > now]
                self._lists_at = 0.0 if is_listed else now + self._pause
            await self._begin_round()
            if ready := await self._ready():
                await self._collect(ready)
                self._log_failures()
                continue

            self._ask_for_element(request_element)
            with anyio.move_on_after(self._wait_seconds()):
                await self._wake.wait()

    async def _released_names(self) -> Sequence[str]:
        while True:
            try:
                return await self._source.released.names()
            except NotOwner:
                raise
            except TierlogError as error:
                self._warn_of_records(error)
                await anyio.sleep(self._pause)

    async def count_garbage(self) -> GarbageTotal:
        """What is deleted in the end, once the container is confirmed (rule G4)."""
        source = self._source
        released = await source.released.names()
        referenced = await source.referenced.among(released)

        async def garbage_among(names: Sequence[str]) -> list[str]:
            return [name for name in names if name in self._queue] + [
                name for name in await self._garbage_among(names) if name not in self._queue
            ]

        return await count_garbage(
            self._chunks,
            source.prefixes,
            garbage_among,
            [name for name in released if name not in referenced],
        )

    async def _ready(self) -> list[Garbage]:
        """The next batch, taken in slices: two heaps make each name expensive. A name that is not referenced
        stays so until it is deleted: its transaction is over, and imports refuse released files (rules S2,
        S19)."""
        now, found = anyio.current_time(), list[Garbage]()
        while len(found) < self._options.batch and self._queue.next_due() <= now:
            taken = self._queue.take(now, min(_TAKEN, self._options.batch - len(found)))
            referenced = await self._referenced_among([garbage.name for garbage in taken])
            pinned = await self._pinned_among(referenced)
            # G6: what a boot from long-term storage alone still needs must be there.
            unpublished = await self._source.unpublished.among([garbage.name for garbage in taken])
            for garbage in taken:
                if garbage.name in pinned:
                    # P4: they would fill the queue. The listing at the end of the backup finds them again.
                    self._forget(garbage.name)
                elif is_ready(garbage, now=now, referenced=referenced, in_transaction=self._open):
                    (self._unpublished if garbage.name in unpublished else found).append(garbage)
                else:
                    self._postponed += 1
                    # Referenced or of a transaction under way, for now. Dropped, it would be found by the
                    # next opening only.
                    self._queue.put(replace(garbage, due=now + self._pause))
            await anyio.lowlevel.checkpoint()
        return found

    def _ask_for_element(self, request_element: Callable[[], None]) -> None:
        """Once in a while for all that waits: there may be no room for the rows (F5)."""
        now = anyio.current_time()
        if self._unpublished and now >= self._asks_at:
            self._asks_at = now + self._pause
            request_element()

    async def _referenced_among(self, names: Sequence[str]) -> Collection[str]:
        """The names among ``names`` that are referenced; all of them if that cannot be read now."""
        try:
            referenced = await self._source.referenced.among(names)
        except NotOwner:
            raise
        except TierlogError as error:
            self._warn_of_records(error)
            return names

        self._lacks_records = False
        return referenced

    async def _pinned_among(self, referenced: Collection[str]) -> Collection[str]:
        """Which of these names a backup keeps; none of them if that cannot be read now."""
        if not referenced:
            return ()

        try:
            return await self._source.pinned.among([*referenced])
        except NotOwner:
            raise
        except TierlogError as error:
            self._warn_of_records(error)
            return ()

    def _warn_of_records(self, error: TierlogError) -> None:
        if not self._lacks_records:  # once until they can be read (rule S7)
            _log.warning("gc_records_unreadable", prefix=self._source.prefixes[0], error=str(error))
        self._lacks_records = True

    @property
    def _pause(self) -> float:
        """Seconds until a name is examined again."""
        return max(1.0, self._options.delay)

    def _is_listing_due(self) -> bool:
        if self._has_left_out:
            # Not as soon as one name has room: each listing goes through the whole prefix.
            has_room = len(self._queue) <= self._options.names_max // 2
            return has_room and self._lists_at <= anyio.current_time()

        return bool(self._listings) and self._listings[0] <= anyio.current_time()

    async def _begin_round(self) -> None:
        """Put names into the queue again: those that waited for an element, and those of failed deletions,
        for one attempt, if their round is due."""
        published, self._published = self._published, []
        for part in in_slices(published):
            for garbage in part:
                self._queue.put(garbage)
            await anyio.lowlevel.checkpoint()
        for part in in_slices(self._retry_later.take(anyio.current_time())):
            for garbage in part:
                self._queue.put(garbage)
                # As if these had been used up: a second failure in this round sends it to the next one.
                self._attempts[garbage.name] = self._options.attempts
            await anyio.lowlevel.checkpoint()

    def _wait_seconds(self) -> float:
        """Seconds until the next delay is over, or the next round of failed deletions is due. An element that
        counts wakes what waits for it."""
        now = anyio.current_time()
        times = [at for at in self._listings if at > now]
        if self._unpublished:
            times.append(self._asks_at)
        if self._has_left_out and self._lists_at > now:
            times.append(self._lists_at)
        return max(0.0, min([self._retry_later.due, self._queue.next_due(), *times]) - now)

    async def _find_orphans(self) -> bool:
        """List what dead owners left, and what found no room; False if long-term storage does not answer, or
        is newer than the log."""
        source = self._source
        left_out, self._has_left_out = self._has_left_out, False
        try:
            await source.check_chain()
            names = await self._list_garbage()
            if left_out:
                names += [name for name in await source.released.names() if not self._is_known(name)]
        except CLAIM_REFUSED:
            raise
        except TierlogError as error:
            self._has_left_out |= left_out
            if isinstance(error, StorageFull):
                self._warn_of_room(error)
            else:
                _log.warning("gc_listing_failed", prefix=source.prefixes[0], error=str(error))
            return False

        # G4: a listed chunk has just shown that the log is older than long-term storage.
        if not source.is_confirmed:
            self._has_left_out |= left_out
            return False

        await self._take_over(names)
        return True

    async def _take_over(self, names: Sequence[str]) -> None:
        """Queue chunks and files that were found."""
        if not names:
            return

        _log.info("gc_orphans_found", prefix=self._source.prefixes[0], count=len(names))
        self._orphans += len(names)
        now = anyio.current_time()
        for part in in_slices(names):
            for name in part:
                # G2: else each of many brief ownerships would leave the runs that it merged.
                is_due = is_run(name) and self._is_older(name)
                due = now if is_due else now + self._options.delay
                self._add(Garbage(name, due, now))
            await anyio.lowlevel.checkpoint()
        self._wake.set()

    async def _list_garbage(self) -> list[str]:
        """The chunks that are garbage and not known yet, as many as there is room for. Filters while it
        lists: there may be millions of other names. The first listing goes on to the end, to compare all
        chunks of dead owners with the log."""
        source, found = self._source, list[str]()
        room = self._options.names_max - len(self._queue)
        async with aclosing(list_parts(self._chunks, source.prefixes, _TAKEN)) as parts:
            async for part in parts:
                await anyio.lowlevel.checkpoint()
                if not self._is_history_checked:
                    await source.check_history([info for info in part if self._is_older(info.name)])
                for name in await self._garbage_among([info.name for info in part]):
                    if len(found) < room:
                        found += [] if self._is_known(name) else [name]
                    else:
                        self._has_left_out = True
                # The rest is for the next listing. The first one goes on, to compare all chunks with the log
                # (G4).
                if self._has_left_out and self._is_history_checked:
                    break
        if source.is_confirmed:
            source.history_checked()
            self._is_history_checked = True
        return found

    def _is_known(self, name: str) -> bool:
        return name in self._queue or name in self._retry_later

    def _is_older(self, name: str) -> bool:
        creator = creator_of(name)
        return creator is not None and creator < self._source.epoch

    async def _garbage_among(self, names: Sequence[str]) -> list[str]:
        """The names that a dead owner left and nothing refers to, or that this owner left and has released:
        names of its epoch that are neither referenced nor of a transaction under way."""
        epoch, own = self._source.epoch, self._lists_own
        created = [(name, creator) for name in names if (creator := creator_of(name)) is not None]
        created = [(name, creator) for name, creator in created if creator < epoch + own]
        # Before the lookup: a transaction that commits during it leaves ``_open``, and its records come too
        # late for the view that is read.
        in_transaction = {name for name, _ in created if name in self._open}
        referenced = await self._source.referenced.among([name for name, _ in created])
        found = orphans(created, epoch=epoch, referenced=referenced)
        known = in_transaction.union(referenced)
        return found + [name for name, creator in created if creator == epoch and name not in known]

    async def _collect(self, ready: list[Garbage]) -> None:
        try:
            if all(garbage.is_proven for garbage in ready):
                await self._source.check_chain()
            else:
                await self._source.prove_anew()
        except CLAIM_REFUSED:
            raise
        except StorageFull as error:
            await self._wait_for_room(ready, error)
            return
        except TierlogError as error:
            for part in in_slices(ready):
                for garbage in part:
                    self._retry(garbage, error)
                await anyio.lowlevel.checkpoint()
            return

        if not self._source.is_confirmed:
            for garbage in ready:
                self._queue.put(garbage)
            return  # the first element, made only now, has shown that the folder was moved

        self._waits_for_room = False
        # G1: what ``_ready`` decided still holds after the barrier. Names are never used twice (S2), and only
        # this owner could add a record.
        await self._source.barrier()
        # G2: a delete that hangs takes one of these tasks, and the others go on.
        names, done = iter(ready), list[str]()
        async with anyio.create_task_group() as tasks:
            for _ in range(min(self._options.concurrent_deletes, len(ready))):
                tasks.start_soon(self._delete_each, names, done)
        # G3: the record goes last. A crash between leaves a record whose file is gone, which the next owner
        # removes.
        try:
            if recorded := list(await self._source.released.among(done)):
                await self._source.released.forget(recorded)
        except CLAIM_REFUSED:
            raise
        except TierlogError as error:
            self._warn_of_records(error)

    async def _wait_for_room(self, ready: Sequence[Garbage], error: StorageFull) -> None:
        """Without room for an element nothing is deleted (rule J9): try again after a pause, as often as it
        takes."""
        self._warn_of_room(error)
        later = anyio.current_time() + self._pause
        for part in in_slices(ready):
            for garbage in part:
                self._queue.put(replace(garbage, due=later))
            await anyio.lowlevel.checkpoint()

    def _warn_of_room(self, error: StorageFull) -> None:
        if not self._waits_for_room:  # once until there is room (rule S7)
            _log.warning("gc_waits_for_room", prefix=self._source.prefixes[0], error=str(error))
        self._waits_for_room = True

    async def _delete_each(self, names: Iterator[Garbage], done: list[str]) -> None:
        """Delete what is left of ``names``, which other tasks take from as well."""
        at_once = _DELETED_AT_ONCE if self._chunks.capabilities.delete_many else 1
        while part := list(islice(names, at_once)):
            await self._delete(part, done)

    async def _delete(self, part: Sequence[Garbage], done: list[str]) -> None:
        self._tried += len(part)
        try:
            missing = await self._delete_chunks([garbage.name for garbage in part])
        except TierlogError as error:
            if len(part) == 1:
                self._retry(replace(part[0], is_proven=True), error)
                return
            # Which of them failed is not known.
            for garbage in part:
                await self._delete([garbage], done)
            return

        now = anyio.current_time()
        # A chunk that is gone counts as well: storage has answered.
        self._retry_later.reset_pause(now)
        for garbage in part:
            if garbage.name in missing:
                self._gone += 1
            else:
                self._deleted += 1
                self._seconds += now - garbage.since
            self._forget(garbage.name)
            done.append(garbage.name)

    async def _delete_chunks(self, names: Sequence[str]) -> Collection[str]:
        """Returns the names of those that were missing."""
        if len(names) > 1:
            return set(await self._chunks.delete_many(names))
        try:
            await self._chunks.delete(names[0])
        except ChunkNotFound:
            return names
        return ()

    def _retry(self, garbage: Garbage, error: TierlogError) -> None:
        attempts = self._attempts.get(garbage.name, 0) + 1
        if attempts >= self._options.attempts:
            self._forget(garbage.name)
            failed = replace(garbage, error=str(error))
            self._keep_for_retry(failed, error, is_first=attempts == self._options.attempts)
            return

        self._retried += 1
        self._attempts[garbage.name] = attempts
        later = anyio.current_time() + self._pause * attempts
        self._queue.put(replace(garbage, due=later, error=str(error)))

    def _keep_for_retry(self, garbage: Garbage, error: TierlogError, *, is_first: bool) -> None:
        if is_first:
            self._unlogged[garbage.name] = error
        if self._retry_later.add(garbage, anyio.current_time()):
            self._retried += 1
        else:
            self._given_up += 1

    def _log_failures(self) -> None:
        """One event for a batch, however many of its deletions have failed for the last time (rule S7)."""
        failed, self._unlogged = self._unlogged, {}
        if failed:
            names = list(failed)
            error = str(failed[names[0]])
            _log.error("gc_retry_later", count=len(names), chunks=names[:_NAMED], error=error)

    def statistics(self) -> CollectorStatistics:
        from .statistics import CollectorStatistics

        return CollectorStatistics(
            queued=len(self._queue),
            released=self._released,
            deleted=self._deleted,
            attempts=self._tried,
            seconds=self._seconds,
            postponed=self._postponed,
            already_gone=self._gone,
            retried=self._retried,
            retry_later=len(self._retry_later),
            given_up=self._given_up,
            orphans_found=self._orphans,
            unpublished=len(self._unpublished),
            paused=int(self.is_paused),
            unconfirmed=int(not self._source.is_confirmed),
        )
