"""The contract of tier 1: ``DurableDataLog``, one container's write-ahead log.

The log stores *groups*: opaque payloads with dense, increasing numbers. It knows nothing of operations;
``tag`` and ``truncate_before`` ride in a group's frame so that recovery finds checkpoints without decoding
payloads.

The promise: every acked append is in what every later owner reads; one that failed, or whose outcome is
unknown, may or may not be (and if it is not in what the next owner reads, it never appears later).
``docs/protocols/wal.md`` holds rules W1 to W8.

* ``open`` fences every earlier writer, returns a strictly larger epoch, and has sealed and re-logged what it
  will read before it returns.
* ``append`` returns once the group is durable *and* the epoch was still current after the sync; one append at
  a time (rule W2: a group starts only after the previous is durable; a second concurrent call is a bug and
  raises ``RuntimeError``).
* A failed append breaks the log: every later call but ``close`` raises ``Unavailable`` (or ``NotOwner`` when
  fenced). There is no way back but ``open`` on a new object (W6).
* Cancelling an append leaves its outcome unknown and breaks the log in the same way.
* ``truncate`` removes whole files below the newest ``truncate_before`` that this owner made durable; it
  checks the epoch first (W5).
* ``close`` after a failure or with ``clean=False`` writes nothing.

Errors: ``NotOwner``, ``Unavailable``, ``StorageFull``, ``DataCorruption`` (file, offset), ``StoreMismatch``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Sequence

import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.statistics import counter, gauge

GROUP_BYTES_MAX = 64 << 20
"""The largest payload of one group, in bytes. Decoders refuse larger lengths as damage."""


@attrs.frozen
class GroupInfo:
    """One recovered group, known from its frame alone."""

    number: int
    epoch: int
    tag: int
    size: int
    truncate_before: int
    """0, or the lowest group number that a reader needs from here on."""


@attrs.frozen
class OpenedLog:
    epoch: int
    history_epoch: int
    """The highest epoch the log knew before this open; 0 for a fresh log. Claims in LTS above it mean a clone
    (rule W8)."""
    groups: Sequence[GroupInfo]
    """Every group from the newest durable truncation address on, in order, without gaps. The last one was
    re-logged."""
    next_group: int
    """The number the next appended group will get; 1 in a fresh log."""


@attrs.frozen
class LogStatistics:
    epoch: int = attrs.field(metadata=gauge("The owner's epoch."))
    next_group: int = attrs.field(metadata=gauge("The number of the next group."))
    appended_groups: int = attrs.field(metadata=counter("Groups made durable."))
    appended_bytes: int = attrs.field(metadata=counter("Bytes of groups made durable."))
    retained_bytes: int = attrs.field(metadata=gauge("Bytes in files that truncation has not removed."))
    files: int = attrs.field(metadata=gauge("Log files that truncation has not removed."))
    syncs: int = attrs.field(metadata=counter("Disk syncs."))


class DurableDataLog(ABC):
    @abstractmethod
    async def open(self, *, above: int = 0, after: Collection[int] | None = None) -> OpenedLog:
        """Become the owner with an epoch above ``above`` and above every epoch the log knows. Once per
        object.

        With ``after`` only while the log's epoch is one of these, else ``NotOwner``, and nobody is fenced: an
        owner that failed and opens again by itself must not take the log from one who came in between.
        """

    @property
    @abstractmethod
    def own_epochs(self) -> Collection[int]:
        """The epochs that this object took, or tried to take without knowing how it went."""

    @abstractmethod
    async def inspect(self) -> OpenedLog:
        """What a reader sees now, without fencing anybody and without writing a byte. ``epoch`` is the
        current owner's. Once per object, instead of ``open``."""

    @abstractmethod
    async def raise_epoch(self, above: int) -> int:
        """As owner, before anything was appended: take a higher epoch (an LTS claim was taken, rule W8)."""

    @abstractmethod
    def read(self, first: int = 0) -> AsyncGenerator[tuple[int, memoryview], None]:
        """(number, payload) of every recovered group from ``first`` on. After ``open`` or ``inspect``, before
        the first ``append``."""

    @abstractmethod
    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        """Make one group durable; returns its number."""

    @abstractmethod
    async def truncate(self) -> None:
        """Remove what lies wholly below the newest durable ``truncate_before`` of this owner."""

    @abstractmethod
    def check_owner(self) -> None:
        """Raise ``NotOwner`` if a later owner has opened the log. Cheap where the log has a cheap way (a
        local register: 1 us); elsewhere it may lag, and reads are prefix-consistent."""

    @abstractmethod
    def has_room(self, size: int) -> bool:
        """Whether a user append of ``size`` bytes may be accepted now. False below the low-water mark (rule
        W6); internal groups ignore it and live on the reserve."""

    @abstractmethod
    async def check_space(self) -> bool:
        """Look at free space now, without appending; whether there is room for any user append. Logs without
        that notion say True."""

    @property
    @abstractmethod
    def next_group(self) -> int: ...

    @abstractmethod
    async def close(self, *, clean: bool = True) -> None:
        """Release everything; with ``clean`` note durably where the log ends. Idempotent."""

    @abstractmethod
    def statistics(self) -> LogStatistics: ...
