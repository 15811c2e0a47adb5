"""A service of ledgers and records in memory, shared by all that are made of one ``Cluster``. What a writer
has under way ends as with BookKeeper: a recovery finds the entries before the first gap, and nothing that
arrives later counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import anyio
import anyio.lowlevel
import attrs

from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import InvalidArgument, OutcomeUnknown, TierlogError, Unavailable
from tierlog.storage_backends.base.ledger_service import (
    MISSING,
    READ_ENTRIES_MAX,
    AppendLost,
    Ledger,
    LedgerDescription,
    LedgerFenced,
    LedgerLost,
    LedgerService,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    Quorum,
    Session,
    StoredRecord,
)

T = TypeVar("T")


@attrs.define(eq=False)
class StoredLedger:
    metadata: Mapping[str, bytes]
    entries: dict[int, bytes] = attrs.field(factory=dict)
    acked: int = -1
    """The newest entry that its writer was answered."""
    is_fenced: bool = False
    is_closed: bool = False

    @property
    def end(self) -> int:
        """The first entry that is not there."""
        return next(number for number in itertools.count() if number not in self.entries)

    def describe(self) -> LedgerDescription:
        last = self.end - 1 if self.is_closed else -1
        length = sum(map(len, self.entries.values())) if self.is_closed else 0
        return LedgerDescription(last, length, self.is_closed, self.metadata)


class Cluster:
    """What the service has. Each method is one step that takes effect as a whole."""

    def __init__(self, bookies: int = 3) -> None:
        self.bookies = bookies
        self.ledgers: dict[int, StoredLedger] = {}
        self.records: dict[str, StoredRecord] = {}
        self._ids = itertools.count(1)
        self._sessions = itertools.count(1)
        self._changed = anyio.Event()

    # --- ledgers ---------------------------------------------------------------------------------

    def create_ledger(self, quorum: Quorum, metadata: Mapping[str, bytes]) -> int:
        if quorum.ensemble > self.bookies:
            raise NotEnoughBookies(f"{quorum.ensemble} bookies are needed, {self.bookies} answer")
        made = next(self._ids)
        self.ledgers[made] = StoredLedger(dict(metadata))
        return made

    def ledger(self, ledger: int) -> StoredLedger:
        if ledger not in self.ledgers:
            raise NoSuchLedger(f"ledger {ledger}")
        return self.ledgers[ledger]

    def add(self, ledger: int, number: int, data: bytes) -> None:
        found = self.ledger(ledger)
        if found.is_fenced:
            raise LedgerFenced(f"ledger {ledger}")
        if found.is_closed:
            raise OutcomeUnknown(f"ledger {ledger} is closed")
        found.entries[number] = data

    def recover(self, ledger: int) -> None:
        found = self.ledger(ledger)
        found.is_fenced = found.is_closed = True
        end = found.end
        found.entries = {number: data for number, data in found.entries.items() if number < end}

    def close(self, ledger: int) -> None:
        self.ledger(ledger).is_closed = True

    def read(self, ledger: int, first: int, last: int, is_known: bool) -> list[bytes]:
        found = self.ledger(ledger)
        numbers = range(first, last + 1)
        if not is_known or any(number not in found.entries for number in numbers):
            raise NoSuchEntry(f"ledger {ledger} entries {first} to {last}")
        return [found.entries[number] for number in numbers]

    # --- records ---------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> StoredRecord | None:
        if path in self.records:
            return None
        self.records[path] = made = StoredRecord(data, 0)
        return made

    def replace(self, path: str, data: bytes, version: int) -> int | None:
        found = self.records.get(path)
        if found is None or found.version != version:
            return None
        self.records[path] = StoredRecord(data, version + 1)
        return version + 1

    def remove(self, path: str, version: int) -> bool:
        found = self.records.get(path)
        if found is None or found.version != version:
            return False
        del self.records[path]
        return True

    def version_of(self, path: str) -> int:
        found = self.records.get(path)
        return MISSING if found is None else found.version

    def begin_session(self) -> int:
        return next(self._sessions)


class MemoryLedgers(LedgerService):
    """One process's connection. A call takes effect at once, in ``_ask``, which faults override."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._session = cluster.begin_session()

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        await anyio.lowlevel.checkpoint()
        return effect()

    def place(self, path: str) -> str:
        return f"memory:{path}"

    async def count_bookies(self) -> int:
        return await self._ask("count", lambda: self.cluster.bookies)

    async def create_ledger(self, quorum: Quorum, metadata: Mapping[str, bytes]) -> Ledger:
        ledger = await self._ask("create_ledger", lambda: self.cluster.create_ledger(quorum, metadata))
        return MemoryLedger(self, ledger, LedgerDescription(-1, 0, False, dict(metadata)))

    async def open_ledger(self, ledger: int, *, recover: bool) -> Ledger:
        def open_() -> LedgerDescription:
            if recover:
                self.cluster.recover(ledger)
            found = self.cluster.ledger(ledger)
            description = found.describe()
            # As BookKeeper's, which tells with each entry what was acked when it was sent.
            if description.is_closed:
                return description
            return description._replace(last=max(-1, found.acked - 1))

        return MemoryLedger(self, ledger, await self._ask("recover" if recover else "open", open_))

    async def delete_ledger(self, ledger: int) -> None:
        await self._ask("delete_ledger", lambda: self.cluster.ledgers.pop(ledger, None))

    async def list_ledgers(self, after: int, count: int) -> list[int]:
        return await self._ask(
            "list", lambda: sorted(each for each in self.cluster.ledgers if each > after)[:count]
        )

    async def describe_ledger(self, ledger: int) -> LedgerDescription:
        return await self._ask("describe", lambda: self.cluster.ledger(ledger).describe())

    async def load(self, path: str) -> StoredRecord | None:
        return await self._ask("load", lambda: self.cluster.records.get(path))

    async def create(self, path: str, data: bytes) -> StoredRecord | None:
        return await self._ask("create", lambda: self.cluster.create(path, data))

    async def replace(self, path: str, data: bytes, version: int) -> int | None:
        return await self._ask("replace", lambda: self.cluster.replace(path, data, version))

    async def remove(self, path: str, version: int) -> bool:
        return await self._ask("remove", lambda: self.cluster.remove(path, version))

    async def children(self, path: str) -> list[str]:
        def list_() -> list[str]:
            start = path.rstrip("/") + "/"
            below = [each[len(start) :] for each in self.cluster.records if each.startswith(start)]
            return sorted({each.split("/")[0] for each in below})

        return await self._ask("children", list_)

    async def check(self, path: str, version: int) -> bool:
        return await self._ask("check", lambda: self.cluster.version_of(path) == version)

    async def session(self) -> Session:
        await anyio.lowlevel.checkpoint()
        return Session(self._session, 10.0)

    def end_session(self) -> None:
        """As if this process had been silent for too long; it has another session then."""
        self._session = self.cluster.begin_session()


class MemoryLedger(Ledger):
    def __init__(self, service: MemoryLedgers, ledger: int, description: LedgerDescription) -> None:
        self.id = ledger
        self.description = description
        self._service = service
        self._next = 0
        self._failure: TierlogError | None = None
        self._is_dropped = self._is_lost = False
        self._lost: Callable[[], None] = _nothing
        self._newest = anyio.Event()
        """The end of the newest append."""
        self._newest.set()

    async def append(self, entries: Sequence[Sequence[Buffer]]) -> int:
        cluster = self._service.cluster
        data = [b"".join(buffers) for buffers in entries]
        first = self._next
        self._next += len(data)

        self._require()
        before, self._newest = self._newest, anyio.Event()
        ended = self._newest
        try:
            for number, entry in enumerate(data, first):
                await self._service._ask("append", partial(cluster.add, self.id, number, entry))
            # BookKeeper acks in order: one that failed takes those behind it along.
            await before.wait()
            self._require()
        except TierlogError as error:
            self._failure = self._failure or error
            raise
        except BaseException:
            self._failure = self._failure or OutcomeUnknown("cancelled")
            raise
        finally:
            ended.set()
        stored = cluster.ledgers.get(self.id)
        if stored is not None:
            stored.acked = max(stored.acked, first + len(data) - 1)
        return first

    def _require(self) -> None:
        if self._is_lost:
            raise AppendLost("the sidecar ended")
        if self._is_dropped:
            raise Unavailable("the ledger's handle is closed")
        if self._failure is not None:
            raise OutcomeUnknown(f"an append before this one failed: {self._failure}")

    async def read(self, first: int, last: int, *, unconfirmed: bool = False) -> list[bytes]:
        if not 0 <= first <= last < first + READ_ENTRIES_MAX:
            raise InvalidArgument(f"entries {first} to {last}: a read has at most {READ_ENTRIES_MAX}")
        if self._is_lost:
            raise LedgerLost(f"ledger {self.id}: the sidecar ended")
        is_known = unconfirmed or self._next > last or last <= self.description.last
        if not is_known:
            raise NoSuchEntry(f"entry {last} of ledger {self.id}")
        return await self._service._ask(
            "read", lambda: self._service.cluster.read(self.id, first, last, is_known)
        )

    async def close(self) -> None:
        await self._service._ask("close", lambda: self._service.cluster.close(self.id))

    def when_lost(self, act: Callable[[], None]) -> None:
        self._lost = act

    def drop(self) -> None:
        self._is_dropped, self._lost = True, _nothing

    def end(self) -> None:
        """As with its sidecar: nothing more is known of it here."""
        lost, self._lost = self._lost, _nothing
        self._failure = self._failure or OutcomeUnknown("the sidecar ended")
        self._is_dropped = self._is_lost = True
        lost()


def _nothing() -> None:
    """Nobody waits for the end."""
