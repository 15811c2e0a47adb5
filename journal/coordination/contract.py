"""The contract of ``Coordination``: what the processes of one store agree on, on one machine or several.

Records are small and replaced as a whole, only while they have the version that was read. Leases say who
should act. They fence nothing: who can act is decided by the log (rule D5). The rules, D1 to D7, are in
``docs/protocols/coordination.md``.

Cancellation of ``compare_and_set``, ``take_lease`` and of a lease's calls leaves their outcome unknown.

Errors: ``Unavailable``, ``OutcomeUnknown``, ``StorageFull``, ``Unsupported``, and ``DataCorruption``, whose
file is a path or an object's URL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ...storage_backends.base.errors import Unavailable

RECORD_BYTES_MAX = 8 << 10
IDENTITY, TERM, CONTROL, CHUNKS = "store", "term", "control", "chunks"
"""The records of a store: its identity, the supervisor's term, and in a place that all machines reach where
hosts join and, on BookKeeper, where the chunks are."""
SUPERVISOR = "supervisor"
"""The lease of the supervisor."""


class Record(NamedTuple):
    data: bytes
    version: str
    """Not empty. Equal bytes may have the same one."""


class LeaseHeld(Unavailable):
    """Another has the lease, or had it a moment ago; ``holder`` is what it calls itself, or empty.
    ``duration``: that of its lease in seconds, or 0 if no clock ends it. ``is_renewed``: the lease has
    changed since this process saw it first, so its holder was alive a moment ago."""

    def __init__(
        self, message: str, holder: str = "", duration: float = 0.0, *, is_renewed: bool = False
    ) -> None:
        super().__init__(message)
        self.holder = holder
        self.duration = duration
        self.is_renewed = is_renewed


class Lease(ABC):
    """A lease that was taken."""

    @abstractmethod
    def is_held(self) -> bool:
        """Whether nobody else can have taken it yet. Asks nobody (rule D4)."""

    @abstractmethod
    async def renew(self, confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        """Keep it for its whole duration from now on. Raises ``NotOwner`` if it was released, or if another
        has or had it. ``confirm``: called if the lease's record was removed, before it is put again; raises
        if the store was removed with it. Without it, that is ``NotOwner`` too (rule D4)."""

    @abstractmethod
    async def release(self) -> None:
        """Let others take it at once. Does nothing the second time, or if another has it."""


class Coordination(ABC):
    @abstractmethod
    def place(self, name: str) -> str:
        """Where that record is, for messages."""

    @abstractmethod
    async def load(self, name: str) -> Record | None:
        """The record, or None if there never was one: no record is ever removed. An empty one, or one of more
        than ``RECORD_BYTES_MAX`` bytes, nobody has set: it has no data, and whoever decodes it finds it
        damaged."""

    @abstractmethod
    async def compare_and_set(self, name: str, data: bytes, version: str = "") -> str | None:
        """Create the record if there is none or, with ``version``, replace it if it has this one: wholly or
        not at all, and durably. Returns its new version, or None if the condition did not hold.

        ``data`` has 1 to ``RECORD_BYTES_MAX`` bytes. Two calls with the same bytes may both succeed: who
        must know whose record it is puts an id into it (rule D1).
        """

    @abstractmethod
    async def take_lease(self, name: str, holder: str, duration: float) -> Lease:
        """Take the lease for ``duration`` seconds, or raise ``LeaseHeld``. ``holder`` is for messages: at
        most 256 bytes.

        An earlier holder's lease ends when it is released, or without being renewed for its duration. Where
        clocks are all there is, this object must have watched it for so long: so the first call raises
        ``LeaseHeld``, and one after the duration succeeds (rule D3).
        """
