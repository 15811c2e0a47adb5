"""The contract of tier 1: ``DurableDataLog``, one container's write-ahead log.

The log stores *groups*: opaque payloads with dense, increasing numbers. It knows nothing of operations; a
group's frame carries ``tag`` and ``truncate_before``, so that recovery finds checkpoints without decoding
payloads.

The promise: every later owner reads every acked append. An append that failed, or whose outcome is unknown,
may or may not be read; if the next owner does not read it, no later one will. Rules W1 to W12 are in
``docs/protocols/wal.md``.

* ``open`` fences every earlier owner and returns a strictly larger epoch. Before it returns, all that it
  returns is durable, and nothing else of earlier owners will ever be read.
* ``append`` returns once the group and all before it are durable *and* no later owner had begun to read;
  ``appends_max`` appends at a time (a further concurrent call is a bug and raises ``RuntimeError``). They are
  numbered in the order of the calls, and return in that order.
* A failed append breaks the log: every later call but ``close`` raises ``Unavailable`` (or ``NotOwner`` when
  fenced). Recovery is ``open`` on a new object (W6).
* Cancelling an append leaves its outcome unknown and breaks the log in the same way.
* ``truncate`` removes what is wholly below the newest ``truncate_before`` that this owner made durable; it
  checks the epoch first (W5).
* ``close`` after a failure or with ``clean=False`` writes nothing.

Errors: ``NotOwner``, ``Unavailable``, ``StorageFull``, ``StoreMismatch``, and ``DataCorruption``, whose file
is a path, or the place of an object, a record or an entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import attrs
from msgspec import Struct

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import InvalidArgument, StorageFull
from ...storage_backends.base.statistics import counter, gauge
from ...storage_backends.base.values import Value

GROUP_BYTES_MAX = 64 << 20
"""The largest payload of one group, in bytes. Decoders reject larger lengths as corruption."""
SLOTS_AHEAD = 16
"""The slots of a log in a bucket that an owner may have puts under way for: a fence leaves so many out (rule
L3). Permanent; here, because the settings need no more of such a log."""

GroupPayload: TypeAlias = tuple[int, memoryview]
"""A group's number and payload."""


class GroupInfo(Struct, frozen=True):
    """One recovered group, from its frame alone."""

    number: int
    epoch: int
    tag: int
    size: int
    truncate_before: int
    """The lowest group number that a reader of this group needs; 0 if it names none."""


class OpenedLog(Struct, frozen=True, eq=False):
    epoch: int
    history_epoch: int
    """The highest epoch in the log before this open; 0 for a new log. A claim in long-term storage above it
    means that the folder is a copy (rule W8)."""
    groups: Sequence[GroupInfo]
    """Every group from the newest durable truncation address on, in order and without gaps."""
    tags: Mapping[int, int]
    """The tags of the few groups with one, by number: there may be millions of others."""
    next_group: int
    """The number of the next appended group; 1 in a new log."""


@attrs.frozen(eq=False, repr=False)
class LogStatistics(Value):
    epoch: int = attrs.field(metadata=gauge("The owner's epoch."))
    next_group: int = attrs.field(metadata=gauge("The number of the next group."))
    appended_groups: int = attrs.field(metadata=counter("Groups made durable."))
    appended_bytes: int = attrs.field(metadata=counter("Bytes of groups made durable."))
    retained_bytes: int = attrs.field(metadata=gauge("Bytes of the log that truncation has not removed."))
    allocated_bytes: int = attrs.field(
        metadata=gauge("Disk blocks that the log holds, also those allocated ahead, when last measured.")
    )
    files: int = attrs.field(
        metadata=gauge("Files, objects or ledgers of the log that truncation has not removed.")
    )
    syncs: int = attrs.field(metadata=counter("Disk syncs."))
    puts: int = attrs.field(default=0, metadata=counter("Puts of a log in a bucket, repeated ones too."))
    gets: int = attrs.field(default=0, metadata=counter("Gets of a log in a bucket."))
    lists: int = attrs.field(default=0, metadata=counter("Listings of a log in a bucket, of 1 page or more."))
    deletes: int = attrs.field(default=0, metadata=counter("Deletions of a log in a bucket."))
    entries: int = attrs.field(default=0, metadata=counter("Entries that a log in ledgers wrote."))
    ledger_calls: int = attrs.field(default=0, metadata=counter("Other calls of a log in ledgers."))


def check_group(size: int, tag: int, truncate_before: int, number: int) -> None:
    """Raises ``InvalidArgument`` unless an append as group ``number`` may have these arguments."""
    if size > GROUP_BYTES_MAX or not 0 <= tag < 1 << 32 or not 0 <= truncate_before <= number:
        raise InvalidArgument(
            f"a group has at most {GROUP_BYTES_MAX} bytes (given: {size}), a 32-bit tag ({tag}), and a "
            f"truncation address of at most its own number {number} ({truncate_before})"
        )


class DurableDataLog(ABC):
    @abstractmethod
    async def open(self, *, above: int = 0, after: Collection[int] | None = None) -> OpenedLog:
        """Become the owner, with an epoch above ``above`` and above every epoch in the log. Once per object.

        With ``after``, only while the log's epoch is one of these; else raises ``NotOwner`` and fences
        nobody. So an owner that failed and opens again by itself does not fence an owner that opened the log
        in between.
        """

    @property
    @abstractmethod
    def own_epochs(self) -> Collection[int]:
        """The epochs that this object took, or tried to take with an unknown outcome."""

    @abstractmethod
    async def inspect(self) -> OpenedLog:
        """Read the log as it is now, without fencing and without writing. ``epoch`` is the present owner's.
        Once per object, instead of ``open``."""

    @abstractmethod
    def read(self, first: int = 0) -> AsyncGenerator[GroupPayload, None]:
        """Yield (number, payload) of every recovered group from ``first`` on. After ``open`` or ``inspect``,
        before the first ``append``."""

    @abstractmethod
    def window_of(self, number: int) -> int:
        """The first group of the window that holds durable group ``number`` (rule W10)."""

    @abstractmethod
    async def read_window(self, number: int) -> Sequence[GroupPayload]:
        """The groups of the window that holds durable group ``number``, checked, in order (rule W10). At any
        time after ``open`` or ``inspect``, also during appends and truncations. Raises ``DataCorruption``
        (file, offset) if the group is damaged, or truncated; the log goes on."""

    @property
    def appends_max(self) -> int:
        """How many appends may be under way at once."""
        return 1

    def append_delay(self, size: int) -> float:
        """The seconds for which an append of ``size`` bytes should wait, so that its group grows: positive
        where each append costs money."""
        return 0.0

    @abstractmethod
    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        """Make one group durable; returns its number."""

    @abstractmethod
    async def truncate(self, *, closing: bool = False) -> None:
        """Remove what is wholly below the newest durable ``truncate_before`` of this owner. While a service
        does not answer, it is left to the next call. ``closing``: the log is closed next, so it makes nothing
        for later appends."""

    def when_lost(self, act: Callable[[], None]) -> None:
        """After ``open``: ``act`` is called if this owner ends while nobody uses the log, because the way to
        its service does. ``check_owner`` raises then."""
        return  # The end of another log shows at its next use only.

    @abstractmethod
    def check_owner(self) -> None:
        """Raises ``NotOwner`` if this owner knows that a later one has opened the log. A hint: asks nobody
        and takes about 1 us. A local log looks into its register; other logs answer from what they last
        heard."""

    async def confirm_owner(self) -> None:
        """Raises ``NotOwner`` if a later owner had opened the log when this was called. What the caller read
        before was then not changed by another owner (rule W12). Raises ``Unavailable`` if that cannot be
        found out now."""
        self.check_owner()  # Where the hint is never old, it is the answer.

    def outage(self) -> str:
        """Why the log's service counts as away, for people; empty if it answers. Asks nobody: it is known by
        the calls that were made anyway."""
        return ""

    def check_folder(self) -> None:
        """Raises ``NotOwner`` if the log's folder was moved or replaced: what is below the same data folder
        may be another store's (rule J7)."""
        return  # A log without a folder stays where it is.

    async def find_moved(self) -> Sequence[str]:
        """The folders to which recoveries moved what was in this log's place (rule R11), sorted."""
        return ()

    @abstractmethod
    def has_room(self, size: int) -> bool:
        """Whether a user append of ``size`` bytes may be accepted now. False below the low-water mark (rule
        W6); internal groups use the reserve."""

    def room_error(self) -> StorageFull:
        """What to raise where ``has_room`` is False: how much is missing where, and what helps."""
        return StorageFull("the log has no room: truncate or delete segments")

    @abstractmethod
    def has_reserve(self, size: int) -> bool:
        """Whether internal groups of ``size`` bytes in all can be appended even if the disk is full."""

    def can_shrink(self) -> bool:
        """Whether ``truncate`` would free space if no group before the next one was needed."""
        return True

    @abstractmethod
    async def check_space(self) -> bool:
        """Measure free space now, without appending. Returns whether there is room for user appends; always
        True where space is not limited."""

    @property
    @abstractmethod
    def next_group(self) -> int: ...

    @abstractmethod
    async def close(self, *, clean: bool = True) -> None:
        """Release everything; with ``clean``, record durably where the log ends. Idempotent."""

    @abstractmethod
    def statistics(self) -> LogStatistics: ...
