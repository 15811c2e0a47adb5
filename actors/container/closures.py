"""Closures: segments that long-term storage alone must show as of one moment, or not at all (rule F10). Pure.

Some segments are published together: a target and what is merged into it, a transaction's target and what is
staged for it, segments that had the same name. If the flush of one does not reach its captured state, the
rows of all of them are held back: the runs keep those of an earlier cycle.

Most rows name their segment in the key. Those that do not have the version of an operation on one segment:
records of chunks, tombstones of names, ended transactions. So the log of these operations says whose a row
is. An operation is forgotten once its rows are published."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Generator, Iterable, Iterator

from ...journal.operations.checkpoint_closures import ClosureChange
from ...storage_backends.base.codec import DecodeError, hex_number
from ...storage_backends.segments.records import DEFERRED_WORK_PREFIX, SEGMENT_PREFIX, is_storage_key
from ...storage_backends.sorted_runs.rows import Row
from ...storage_backends.sorted_runs.run_list import RunList
from ..kernel.slices import in_slices
from .segment_rows import IMAGE_PREFIX, NAME_PREFIX

_HEX_DIGITS = 16
_HEX_PREFIXES = (b"a:", b"y:", b"v:", IMAGE_PREFIX)
"""Attributes, writers, marks of removed segments, images: the segment's id follows in hex."""
_TABLE_PREFIX = b"r:"
"""Rows of users' tables: the segment's id follows in 8 bytes."""
_ID_BYTES = 8
_STEP = 256


def is_record(key: bytes) -> bool:
    """Whether a cycle publishes a row of this key as of its end: a record of long-term storage, or the end of
    an image, which only a flush puts."""
    return is_storage_key(key) or key.startswith(IMAGE_PREFIX)


def segment_of_records(keys: Iterable[str]) -> int:
    """The segment whose records a commit changes; 0 if it is of none."""
    found = 0
    for key in keys:
        if key.startswith(SEGMENT_PREFIX):
            return hex_number(key[len(SEGMENT_PREFIX) :])
        if key.startswith(DEFERRED_WORK_PREFIX):
            start = len(DEFERRED_WORK_PREFIX)
            found = hex_number(key[start : start + _HEX_DIGITS])
    return found


def _reached(segments: Iterable[int], linked: dict[int, list[int]], found: set[int]) -> Iterator[int]:
    """Move to ``found`` what can be reached; each link that is followed is an item."""
    groups = [segments]
    while groups:
        for segment in groups.pop():
            if segment not in found:
                found.add(segment)
                groups.append(linked.pop(segment, ()))
            yield segment


def _popped(linked: dict[int, list[int]]) -> Iterator[int]:
    while linked:
        yield linked.popitem()[0]


class ClosureLog:
    """The operations whose rows are not published yet, in the order of their versions."""

    def __init__(self) -> None:
        self._changes: list[ClosureChange] = []

    def __len__(self) -> int:
        return len(self._changes)

    def note(self, version: int, segment: int, other: int = 0) -> None:
        """The operation ``version`` puts rows for ``segment``, which is published together with ``other``,
        maybe itself; 0 if they are records of long-term storage."""
        self._changes.append(ClosureChange(version, segment, other))

    def restore(self, changes: Iterable[ClosureChange]) -> None:
        """Recovery: those of a checkpoint, which come first."""
        self._changes += changes

    def changes(self) -> list[ClosureChange]:
        """All of them."""
        return self._changes.copy()

    def segment_of(self, version: int) -> int:
        """Whose rows have this version; 0 if that is in the rows, or unknown because they are published."""
        at = bisect_left(self._changes, (version,))
        return self._changes[at].segment if self._has(at, version) else 0

    def _has(self, at: int, version: int) -> bool:
        return at < len(self._changes) and self._changes[at].version == version

    def changed(self, after: int, to: int) -> Iterator[int]:
        """The segments of the operations after ``after``, up to ``to``."""
        return (change.segment for change in self._range(after, to))

    def closure(self, segments: Iterable[int], to: int) -> Generator[None, None, set[int]]:
        """``segments``, and all that operations up to ``to`` publish together with one of them. Some in each
        step; nobody forgets meanwhile."""
        linked: dict[int, list[int]] = {}
        for part in in_slices(self._range(0, to), _STEP):
            for _, segment, other in part:
                if other:
                    linked.setdefault(segment, []).append(other)
                    linked.setdefault(other, []).append(segment)
            yield
        found: set[int] = set()
        for _ in in_slices(_reached(segments, linked, found), _STEP):
            yield
        # To free the lists of all the others at once takes a step that is as long.
        for _ in in_slices(_popped(linked), _STEP):
            yield
        return found

    def _range(self, after: int, to: int) -> Iterator[ClosureChange]:
        begin, end = (bisect_left(self._changes, (version + 1,)) for version in (after, to))
        return (self._changes[at] for at in range(begin, end))

    def is_held(self, held: Collection[int], row: Row) -> bool:
        """Whether the row belongs to one of the segments ``held``. Rows that do not decode are of none."""
        key = row.key
        try:
            if key.startswith(_HEX_PREFIXES):
                return hex_number(key[2 : 2 + _HEX_DIGITS].decode("ascii", "replace")) in held
            if key.startswith(_TABLE_PREFIX):
                return int.from_bytes(key[2 : 2 + _ID_BYTES], "big") in held
            if key.startswith(NAME_PREFIX) and row.value is not None:
                return int.from_bytes(row.value, "big") in held
        except DecodeError:
            return False
        return self.segment_of(row.version) in held

    def forget(self, runs: RunList) -> Iterator[None]:
        """The operations whose rows ``runs`` have are published. Some in each step; nobody else forgets
        meanwhile. Of two segments that an operation ties together, both are held back or neither."""
        at, end = 0, bisect_left(self._changes, (runs.records_to + 1,))
        while at < end:
            part = self._changes[at : min(at + _STEP, end)]
            kept = [
                change
                for change in part
                if (change.other and change.version > runs.rows_to) or change.segment in runs.held
            ]
            self._changes[at : at + len(part)] = kept
            at, end = at + len(kept), end - len(part) + len(kept)
            yield
