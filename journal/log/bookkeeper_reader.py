"""``GroupReader``: the groups of a log's ledgers by number, several in one read where they follow each other.
Nothing is kept but open ledgers; a cancelled read leaves them as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ...storage_backends.base.errors import DataCorruption
from ...storage_backends.base.ledger_service import READ_ENTRIES_MAX, Ledger
from ...storage_backends.base.parallel import in_parallel
from .bookkeeper_calls import LogContext
from .bookkeeper_entry import decode_entry, parts_of
from .bookkeeper_layout import ledger_and_entry
from .contract import GroupPayload
from .group_index import GroupIndex


class GroupReader:
    def __init__(self, ctx: LogContext, index: GroupIndex) -> None:
        self._ctx = ctx
        self._index = index
        self._ledgers: dict[int, Ledger] = {}
        self.is_beside_owner = False
        """Whether a living owner may have acked more than a ledger says."""

    def add(self, ledger: Ledger) -> None:
        """It is open."""
        self._ledgers[ledger.id] = ledger

    def drop(self, ids: Iterable[int] | None = None) -> None:
        """These ledgers, or all."""
        for each in list(self._ledgers if ids is None else ids):
            ledger = self._ledgers.pop(each, None)
            if ledger is not None:
                ledger.drop()

    async def read(
        self, numbers: Sequence[int], kept: Mapping[int, memoryview] | None = None
    ) -> list[GroupPayload]:
        """These groups, which the index knows. ``kept``: payloads of entries that are here, by position."""
        entries = dict(kept or {})
        wanted = [at for number in numbers for at in self._positions(number) if at not in entries]
        reads = [partial(self._fetch, span) for span in _spans(wanted)]
        for found in await in_parallel(self._ctx.options.reads, reads):
            entries.update(found)
        return [(number, self._joined(number, entries)) for number in numbers]

    def _positions(self, number: int) -> range:
        start = self._index.position_of(number)
        assert start is not None
        return range(start, start + parts_of(self._index.size_of(number)))

    def _joined(self, number: int, entries: Mapping[int, memoryview]) -> memoryview:
        parts = [entries[at] for at in self._positions(number)]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    async def _fetch(self, span: range) -> dict[int, memoryview]:
        ledger_id, first = ledger_and_entry(span.start)
        ledger = await self._open(ledger_id)
        found = {}
        last = first + len(span) - 1
        entries = await self._ctx.read(ledger, first, last, unconfirmed=self.is_beside_owner)
        for at, data in zip(span, entries, strict=True):
            place = self._ctx.entry_place(*ledger_and_entry(at))
            header, payload = decode_entry(data, self._ctx.log_id, place)
            if self._index.position_of(header.number) != at - header.part:
                raise DataCorruption(f"the entry has group {header.number}, which is not here", file=place)
            found[at] = payload
        return found

    async def _open(self, ledger: int) -> Ledger:
        if ledger not in self._ledgers:
            opened = await self._ctx.open_ledger(ledger, recover=False)
            if ledger in self._ledgers:
                opened.drop()
            else:
                self._ledgers[ledger] = opened
        return self._ledgers[ledger]


def _spans(positions: Sequence[int]) -> list[range]:
    """Positions that follow each other, as many as one read may have."""
    spans: list[range] = []
    for at in positions:
        if spans and at == spans[-1].stop and len(spans[-1]) < READ_ENTRIES_MAX:
            spans[-1] = range(spans[-1].start, at + 1)
        else:
            spans.append(range(at, at + 1))
    return spans
