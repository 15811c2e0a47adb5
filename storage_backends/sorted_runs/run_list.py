"""The run list: the runs that make a table, from new to old. Immutable: a change makes another list, so a
lookup that holds one is not disturbed (rule M3).

Layout: u64 ``changes_from``, u32 count, count times blob entry (``run_entry.py``)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, groupby, pairwise
from types import MappingProxyType

import attrs

from ..base.codec import DecodeError, Decoder, Encoder
from ..base.errors import DataCorruption
from ..base.values import Value
from .run_entry import RunEntry


def _in_order(runs: Sequence[RunEntry]) -> tuple[RunEntry, ...]:
    return tuple(sorted(runs, key=lambda run: (-run.last_cycle, run.summary.first_key)))


def _greatest_version(runs: Iterable[RunEntry], changes_from: int) -> int:
    # Merges that drop tombstones may leave no row with the greatest version.
    return max(chain((run.summary.max_version for run in runs), (changes_from,)))


class AscendingIds(tuple[int, ...]):
    """Ids in ascending order. There are up to 131,072, so they are not searched one by one."""

    __slots__ = ()

    def __contains__(self, sid: object) -> bool:
        if not isinstance(sid, int):
            return False

        at = bisect_left(self, sid)
        return at < len(self) and self[at] == sid


def _ascending(ids: tuple[int, ...]) -> AscendingIds:
    return ids if isinstance(ids, AscendingIds) else AscendingIds(ids)


@attrs.frozen(eq=False, repr=False)
class RunList(Value):
    runs: tuple[RunEntry, ...] = attrs.field(default=(), converter=_in_order)
    changes_from: int = 0
    """The changes since an older version are not complete: merges have dropped tombstones up to this one
    (rule M7). Kept besides the entries, because a merge of tombstones may leave no run."""
    schema: int = 0
    """Which kinds of rows the runs have: a number of the table's owner, who keeps it beside the list."""
    rows_to: int = attrs.field()
    """The rows up to this version are in these runs, as far as they are not outdated."""
    records_to: int = attrs.field()
    """Those that are records of long-term storage, up to this version. It grows with every cycle that has a
    run: rows that a view had in memory may have left it once this number is another one."""
    held: AscendingIds = attrs.field(default=AscendingIds(), converter=_ascending)
    """Ids of segments that are held back (rule F10): the runs have their rows as of an earlier
    cycle, whatever the two numbers are."""

    @rows_to.default
    def _as_runs(self) -> int:
        return _greatest_version(self.runs, self.changes_from)

    @records_to.default
    def _as_rows(self) -> int:
        return self.rows_to

    def __attrs_post_init__(self) -> None:
        if self.rows_to > self.records_to:
            raise DataCorruption(f"the runs have rows up to {self.rows_to}, records up to {self.records_to}")
        generations = self.generations()
        for newer, older in pairwise(generations):
            if newer[0].first_cycle <= older[0].last_cycle:
                raise DataCorruption("the cycles of two runs overlap", file=newer[0].name)
        for generation in generations:
            for left, right in pairwise(generation):
                if left.summary.last_key >= right.summary.first_key or left.first_cycle != right.first_cycle:
                    raise DataCorruption("the keys of two runs of one merge overlap", file=right.name)

    def __iter__(self) -> Iterator[RunEntry]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def generations(self) -> list[tuple[RunEntry, ...]]:
        """The runs, those of one cycle or of one merge together, from new to old."""
        return [tuple(group) for _, group in groupby(self.runs, key=lambda run: run.last_cycle)]

    def replaced(
        self, removed: Collection[RunEntry], added: Sequence[RunEntry], dropped_to: int = 0
    ) -> RunList:
        """With ``added``, the result of a merge of ``removed``, which dropped tombstones up to
        ``dropped_to``."""
        names = {run.name for run in removed}
        kept = (run for run in self.runs if run.name not in names)
        changes_from = max(self.changes_from, dropped_to)
        return RunList([*kept, *added], changes_from, self.schema, self.rows_to, self.records_to, self.held)

    def clean_to(self, *, is_record: bool) -> int:
        """A row up to this version is in these runs, if it is the newest of its key."""
        return self.records_to if is_record else self.rows_to

    def published(
        self,
        runs: Sequence[RunEntry],
        schema: int,
        rows_to: int | None = None,
        records_to: int | None = None,
        held: tuple[int, ...] = (),
    ) -> RunList:
        """With the ``runs`` of a cycle, if it has any: then the list has all rows that ``schema`` means, up
        to these versions, but those of segments that are ``held`` back. Without versions: all rows. The list
        of a table that never had a row to publish says so too."""
        if not runs and (self.runs or self.schema == schema or rows_to is None):
            return self

        added = (*self.runs, *runs)
        if rows_to is None or records_to is None:
            return RunList(added, self.changes_from, schema)
        return RunList(
            added,
            self.changes_from,
            schema,
            max(rows_to, self.rows_to),
            max(records_to, self.records_to),
            held,
        )

    def encode(self) -> bytes:
        fields = Encoder().u64(self.changes_from).u32(len(self.runs))
        for run in self.runs:
            fields.blob(run.encode())
        return fields.finish()

    @cached_property
    def encoded_held(self) -> bytes:
        """Encoded once: many elements have the same list."""
        return Encoder().ascending(self.held).finish()

    @cached_property
    def size(self) -> int:
        """The encoded size in bytes."""
        return len(self.encode())

    @classmethod
    def decode(
        cls,
        fields: Decoder,
        known: Mapping[bytes, RunEntry] = MappingProxyType({}),
        schema: int = 0,
        versions: tuple[int, int] | None = None,
        held: tuple[int, ...] = (),
    ) -> RunList:
        """``known``: entries by their bytes, which are not decoded again. ``versions``: ``rows_to`` and
        ``records_to``, which are kept beside the list, as ``held`` is; None: both are the greatest version in
        it. Raises ``DecodeError``."""
        changes_from = fields.u64()
        entries = (fields.blob() for _ in range(fields.u32()))
        runs = tuple(known.get(data) or RunEntry.decode(data) for data in entries)
        try:
            decoded = cls(runs, changes_from, schema, *(versions or ()))
            decoded = attrs.evolve(decoded, held=held) if held else decoded
        except DataCorruption as error:
            raise DecodeError(error.reason) from error
        # Sorted again they would encode to other bytes than those that were read.
        if decoded.runs != runs:
            raise DecodeError("the runs are not in order")
        if versions is not None and decoded.records_to < _greatest_version(runs, changes_from):
            raise DecodeError(f"the runs have rows above version {decoded.records_to}")
        return decoded
