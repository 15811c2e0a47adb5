"""Keeping header files of the legacy layout up to date, for software that still reads them
(``LayoutMode.CODE_ONLY_UPGRADE``).

Owns: which headers are behind, and when they are written. Does not own: their bytes
(``rolling/exporting.py``).

A header is due when a commit changed its segment's chunks or seal and the flush cycle is complete; ``settle``
writes what is due, and a flush that a caller asked for waits for it. At the start all are looked at. A header
that cannot be written is tried again later; a segment that the format cannot say keeps the header that it
has, and the log of events says so. When a segment goes, its header goes.

Ordering: under one lock, in no order of segments; each time the ownership is proved first, so that a fenced
owner writes none. Older readers may see a header for a moment that is behind, or none while it is replaced.
Cancellation and crash: the next start looks at all; a header of a segment whose deletion was complete but for
the header stays, and older readers find its files missing.
"""

from __future__ import annotations

from contextlib import suppress

import anyio

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    ChunkNotFound,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
    Unsupported,
)
from ...storage_backends.base.transactions import is_staged
from ...storage_backends.segments.records import SegmentRecord
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ..container.state import ContainerState
from ..telemetry.logging import get_logger
from .export import export
from .header import header_name
from .legacy_segments import OWN_CHUNKS, LegacySegments

_log = get_logger("headers")
_RETRY_SECONDS = 5.0
_STORAGE_TROUBLE = (Unavailable, OutcomeUnknown, StorageFull)
"""What the next header would meet too; every other error is about one segment."""


_Outline = tuple[str, str, int, bool]


def _outline(record: SegmentRecord) -> _Outline:
    """What changes whenever a header has to: the chunks at both ends, their number, the seal."""
    return record.first_chunk, record.last_chunk, record.chunk_count, record.sealed


class HeaderKeeper:
    def __init__(
        self,
        state: ContainerState,
        older: LegacySegments,
        storage: ChunkedSegmentStorage,
        chunks: ChunkStorage,
        *,
        active: bool,
    ) -> None:
        """Unless it is ``active`` it writes nothing. The publisher calls ``record_changed`` and
        ``cycle_completed``."""
        self._active = active
        self._state = state
        self._older = older
        self._storage = storage
        self._chunks = chunks
        self._changed: dict[int, str] = {}
        """Segments whose record changed, and their names; due with the next complete cycle."""
        self._due: dict[int, str] = {}
        self._written: dict[int, _Outline] = {}
        """What the headers say that this owner has written or looked at."""
        self._turn = anyio.Lock()
        self._wake = anyio.Event()

    def record_changed(self, sid: int) -> None:
        """Long-term storage's record of the segment was committed, or removed."""
        segment = self._state.segments.get(sid) if self._active else None
        if segment is not None:
            self._changed[sid] = segment.name

    def cycle_completed(self) -> None:
        if self._changed:
            self._due |= self._changed
            self._changed.clear()
            self._wake.set()

    async def run(self) -> None:
        """Write headers as they become due, until cancelled."""
        if not self._active:
            return

        segments = self._state.segments
        self._due |= {sid: name for name in segments.names("") if (sid := segments.sid_of(name)) is not None}
        self._due |= {sid: segment.name for sid, segment in segments.by_id.items() if segment.is_gone}
        while True:
            self._wake = anyio.Event()
            await self.settle()
            with anyio.move_on_after(_RETRY_SECONDS if self._due else float("inf")):
                await self._wake.wait()

    async def settle(self) -> None:
        """Write what is due now. What fails stays due; a header that has trouble of its own does not hold up
        the others."""
        async with self._turn:
            due, self._due = self._due, {}
            failed: dict[int, str] = {}
            try:
                if due:
                    await self._older.prove()
                while due:
                    sid, name = next(iter(due.items()))
                    try:
                        await self._write(sid, name)
                    except (NotOwner, *_STORAGE_TROUBLE):
                        raise
                    except TierlogError as error:
                        failed[sid] = name
                        _log.warning("header_failed", segment=name, error=str(error))
                    del due[sid]
            except NotOwner:
                raise
            except TierlogError as error:
                _log.warning("headers_behind", count=len(due) + len(failed), error=str(error))
            finally:
                self._due = due | failed | self._due

    async def _write(self, sid: int, name: str) -> None:
        if is_staged(name) or name.startswith(OWN_CHUNKS):
            return  # older software never sees these

        segment = self._state.segments.get(sid)
        if segment is None or segment.is_gone:
            self._written.pop(sid, None)
            await self._remove(name)
        elif segment.has_record:
            record = await self._storage.info(sid)
            if self._written.get(sid) != _outline(record):
                await self._export(name, record)
                self._written[sid] = _outline(record)

    async def _export(self, name: str, record: SegmentRecord) -> None:
        await self._older.disown(name, record.segment)
        try:
            await export(
                self._chunks,
                name,
                record,
                await self._storage.chunks(record.segment),
                replace=True,
                trusted=True,
            )
        except Unsupported as error:
            _log.warning("header_not_possible", segment=name, error=str(error))

    async def _remove(self, name: str) -> None:
        if self._state.segments.sid_of(name) is None:
            with suppress(ChunkNotFound):
                await self._chunks.delete(header_name(name))
