"""The contract of a service of ledgers and records: what a log in ledgers, and coordination beside it, need.

A **ledger** is a sequence of entries that one writer appends to, from 0. Opening it with ``recover`` fences
the writer: whatever was acked is in it then, and nothing is added any more. A **record** is a few bytes below
a path, replaced as a whole while it has the version that was read.

Every call may raise ``Unavailable``: it had no effect, and may be repeated. One that changes something may
also raise ``OutcomeUnknown``: it took effect, takes effect at any later time, or never does. A cancelled one
too. A ledger whose ``append`` failed takes no more entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .checksum import Buffer
from .errors import NotOwner, OutcomeUnknown, TierlogError, Unavailable

ENTRY_BYTES_MAX = 1 << 20
"""The largest payload of an entry that callers use, in bytes; a few bytes of their own header come on top."""
READ_ENTRIES_MAX = 16
"""Entries in one read."""
RECORD_BYTES_MAX = 512 << 10
MISSING = -1
"""The version of a record that is not there."""


class LedgerFenced(NotOwner):
    """Another process recovered the ledger; this writer adds nothing more to it. Find the new owner."""


class NoSuchLedger(TierlogError):
    """The ledger was deleted. Read again which ledgers there should be."""

    code = "no-such-ledger"


class NoSuchEntry(TierlogError):
    """The ledger ends before that entry, or no bookie has it."""

    code = "no-such-entry"


class NotEnoughBookies(Unavailable):
    """Fewer bookies answer than the ledger needs. Start more, or use smaller quorums."""


class SidecarNotStarted(Unavailable):
    """This process has no way to the service, and cannot get one; another process may have one. To repeat the
    call at once helps nobody."""


class LedgerLost(Unavailable):
    """The ledger was open by a way to the service that has ended. It must be opened again: to repeat the call
    helps nobody."""


class AppendLost(OutcomeUnknown):
    """As ``LedgerLost``, of an append."""


class Quorum(NamedTuple):
    """Each entry is written to ``write`` of the ``ensemble`` bookies of a ledger, and acked when ``ack`` of
    them have it."""

    ensemble: int
    write: int
    ack: int


class StoredRecord(NamedTuple):
    data: bytes
    version: int


class Session(NamedTuple):
    """At ZooKeeper: ``timeout`` seconds without a word of this process end it, and another one begins."""

    id: int
    timeout: float


class LedgerDescription(NamedTuple):
    last: int
    """The last entry; -1 if there is none, or if the ledger is not closed."""
    length: int
    """Bytes of its entries; 0 if it is not closed."""
    is_closed: bool
    metadata: Mapping[str, bytes]
    """What its creator wrote."""


class Ledger(ABC):
    """An open ledger."""

    id: int
    description: LedgerDescription
    """As of its opening. Of a ledger that is open for reading without ``recover`` and has a writer, ``last``
    is an entry that was acked, perhaps not the newest one."""

    @abstractmethod
    async def append(self, entries: Sequence[Sequence[Buffer]]) -> int:
        """Add entries, one after the other, each the buffers of its bytes; returns the number of the first
        when all are durable. Concurrent calls add in the order in which they began.

        Raises ``LedgerFenced``; any failure ends the ledger, as ``OutcomeUnknown`` for what was not acked. It
        is ``AppendLost`` if the way to the service has ended.
        """

    @abstractmethod
    async def read(self, first: int, last: int, *, unconfirmed: bool = False) -> list[bytes]:
        """These entries, at most ``READ_ENTRIES_MAX``. Raises ``NoSuchEntry``, ``LedgerLost``.

        With ``unconfirmed``, also entries that may not be durable yet: what is behind ``last`` of a ledger
        with a living writer.
        """

    @abstractmethod
    async def close(self) -> None:
        """As its writer, record where it ends, so that nobody has to recover it. It can still be read."""

    @abstractmethod
    def when_lost(self, act: Callable[[], None]) -> None:
        """Call ``act`` once the way to the service has ended, after which an append is ``AppendLost``. Not
        after ``drop``."""

    @abstractmethod
    def drop(self) -> None:
        """Let go of it, as it is: asks nobody. It must not be used any more."""


class LedgerService(ABC):
    @abstractmethod
    def place(self, path: str) -> str:
        """Where that record is, for messages."""

    # --- ledgers ---------------------------------------------------------------------------------

    @abstractmethod
    async def count_bookies(self) -> int:
        """How many bookies take entries now."""

    @abstractmethod
    async def create_ledger(self, quorum: Quorum, metadata: Mapping[str, bytes]) -> Ledger:
        """A new one, open for its only writer, with an id that no other ever has. Raises
        ``NotEnoughBookies``."""

    @abstractmethod
    async def open_ledger(self, ledger: int, *, recover: bool) -> Ledger:
        """Open a ledger for reading. With ``recover``, fence its writer and close it first: it then has every
        entry that was acked, and never another one. Raises ``NoSuchLedger``."""

    @abstractmethod
    async def delete_ledger(self, ledger: int) -> None:
        """It is no error if there is none."""

    @abstractmethod
    async def list_ledgers(self, after: int, count: int) -> list[int]:
        """The ``count`` lowest ids above ``after`` of all ledgers, whoever made them, in order. One that is
        created or deleted meanwhile may be missing or not."""

    @abstractmethod
    async def describe_ledger(self, ledger: int) -> LedgerDescription:
        """Raises ``NoSuchLedger``."""

    # --- records ---------------------------------------------------------------------------------

    @abstractmethod
    async def load(self, path: str) -> StoredRecord | None:
        """The record, or None. It may be a little older than this call if the server that answers is cut off
        from the others, but never older than what this object has seen."""

    @abstractmethod
    async def create(self, path: str, data: bytes) -> StoredRecord | None:
        """Create the record, with its parents; None if there is one. A record that was removed and created
        again begins with the same version."""

    @abstractmethod
    async def replace(self, path: str, data: bytes, version: int) -> int | None:
        """Replace the record if it has this version. Returns its new one, or None if the condition did not
        hold: then nothing changed, unless an earlier attempt did."""

    @abstractmethod
    async def remove(self, path: str, version: int) -> bool:
        """Remove the record if it has this version; returns whether it did."""

    @abstractmethod
    async def children(self, path: str) -> list[str]:
        """The names of the records directly below the path."""

    @abstractmethod
    async def check(self, path: str, version: int) -> bool:
        """Whether the record has this version, at some time during the call: a quorum answers."""

    @abstractmethod
    async def session(self) -> Session:
        """The present session."""
