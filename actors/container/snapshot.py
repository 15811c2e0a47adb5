"""The state at one sequence, while a checkpoint encodes it in parts (rules C7, M8). Sync."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ...journal.operations.transaction_image import encode_transaction
from ...storage_backends.sorted_runs.rows import Row
from ...storage_backends.sorted_runs.run_list import RunList
from .closures import ClosureLog, is_record

if TYPE_CHECKING:
    from .state import ContainerState

_Item = tuple[str, int, Any]
"""A record of a snapshot: the list of ``Records`` that it goes to, its size in bytes, and itself."""
_END: _Item = ("", 0, None)


def is_clean(runs: RunList, row: Row) -> bool:
    """Whether ``runs`` have ``row``, the newest of its key, unless it is held back."""
    return row.version <= runs.clean_to(is_record=is_record(row.key))


class Records(Struct, eq=False):
    """Records of a snapshot that are logged together."""

    size: int = 0
    """The size of all records, in bytes."""
    images: list[tuple[int, bytes]] = field(default_factory=list)
    """Images with their versions."""
    rows: list[Row] = field(default_factory=list)
    transactions: list[bytes] = field(default_factory=list)


class Snapshot:
    """The state at one sequence, while a checkpoint encodes it in parts. A segment is encoded before its
    first change (rule C7)."""

    def __init__(self, state: ContainerState) -> None:
        self.sequence = state.sequence
        self.cycle = state.cycle
        self.manifest = state.manifest
        self.closures = state.closures.changes()
        self.has_spilled = state.has_spilled
        self.live_segments = state.live_segments
        self.ends = state.transactions.ends
        self.segments = segments = state.segments.freeze()
        self.table = table = state.table.begin_view()
        resident, transactions = state.resident.freeze(), state.transactions.records.freeze()
        clean = (
            row if is_clean(table.runs, row) else None
            for row in (Row(key.encode(), version, value) for key, (version, value) in resident)
        )
        held = ClosureLog()
        held.restore(self.closures)
        # While segments are held back, memtables may have rows of others, which left memory meanwhile.
        dirty = (
            row
            if row is not None and (not is_clean(table.runs, row) or held.is_held(table.runs.held, row))
            else None
            for row in table.dirty_rows()
        )
        self._left: Iterator[_Item | None] = chain(
            (("images", len(entry[1]), entry) for _, entry in segments),
            (
                None if row is None else ("rows", len(row.key) + len(row.value or b""), row)
                for row in chain(clean, dirty)
            ),
            (
                ("transactions", len(encoded), encoded)
                for encoded in (encode_transaction(transaction) for _, transaction in transactions)
            ),
        )
        self._held: _Item | None = None
        """The record for which the last part had no room."""
        self.is_complete = False
        """Whether all records were taken."""

    def take(self, count: int, size: int) -> Records:
        """Remove the next records, at most ``count``, of ``size`` bytes; a larger one comes alone. Records
        that do not belong to the snapshot count too, so there may be none although it is not complete."""
        found = Records()
        for _ in range(count):
            item = self._held or next(self._left, _END)
            if item is _END:
                self.is_complete = True
                break
            if item is None:
                continue

            kind, record_size, record = self._held = item
            if found.size and found.size + record_size > size:
                break

            getattr(found, kind).append(record)
            found.size += record_size
            self._held = None
        return found
