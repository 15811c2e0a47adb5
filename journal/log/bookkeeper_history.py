"""What the entries of a log's ledgers mean (rules B3 to B5): which groups count, and where the log ends. No
I/O; ``bookkeeper_open`` acts."""

from __future__ import annotations

import attrs

from .bookkeeper_entry import EntryHeader, parts_of
from .bookkeeper_layout import position
from .bookkeeper_record import ListedLedger


class Contradiction(Exception):
    """The entry, or the ledger as a whole, does not follow what was before it."""

    def __init__(self, ledger: int, entry: int, why: str) -> None:
        super().__init__(why)
        self.ledger = ledger
        self.entry = entry


@attrs.frozen
class FoundGroup:
    """A group that counts."""

    number: int
    epoch: int
    tag: int
    truncate_before: int
    size: int
    ledger: int
    entry: int
    """Its first entry."""

    @property
    def position(self) -> int:
        return position(self.ledger, self.entry)


@attrs.define(eq=False, repr=False)
class LedgerHistory:
    """The groups of the ledgers that were given to it, in order."""

    groups: list[FoundGroup] = attrs.field(factory=list)
    next_group: int = 1
    epoch: int = 0
    """Of the newest group; 0 if there is none."""
    _ledger: ListedLedger | None = None
    _started: EntryHeader | None = None
    """The group whose parts are being read."""

    def begin_ledger(self, ledger: ListedLedger) -> None:
        """The ledger comes next; the one before is complete. Raises ``Contradiction``."""
        if self._ledger is None:
            # B7: truncation ends at a ledger, and nobody knows what was before.
            self.next_group = ledger.first
        elif ledger.first != self.next_group:
            # B5: its first group was numbered when all before it were acked.
            what = f"it begins with group {ledger.first}, but the ledger before ends before {self.next_group}"
            raise Contradiction(ledger.id, 0, what)
        self._ledger = ledger
        # B3: a group whose last parts are missing was never acked.
        self._started = None

    def add(self, entry: int, header: EntryHeader) -> None:
        """The ledger's next entry. Raises ``Contradiction``."""
        assert self._ledger is not None
        self._check(entry, header)
        if header.part == parts_of(header.size) - 1:
            first = entry - header.part
            group = (header.number, header.epoch, header.tag, header.truncate_before, header.size)
            self.groups.append(FoundGroup(*group, self._ledger.id, first))
            self.next_group = header.number + 1
            self.epoch = header.epoch
            self._started = None
        else:
            self._started = header

    def _check(self, entry: int, header: EntryHeader) -> None:
        assert self._ledger is not None
        expected = 0 if self._started is None else self._started.part + 1
        if (header.number, header.part) != (self.next_group, expected):
            what = f"part {header.part} of group {header.number}, not part {expected} of {self.next_group}"
            raise Contradiction(self._ledger.id, entry, f"it is {what}")
        if self._started is not None and header != self._started._replace(part=expected):
            raise Contradiction(self._ledger.id, entry, "it is a part of another group of that number")
        if header.epoch < self.epoch:
            raise Contradiction(self._ledger.id, entry, f"its epoch {header.epoch} is below {self.epoch}")
