"""Keeps header files of the legacy layout up to date, for software that still reads them
(``LayoutMode.CODE_ONLY_UPGRADE``).

A header is due when a commit changed its segment's chunks or seal and the flush cycle is complete; ``flush``
writes what is due. At the start every header is checked. One that cannot be written is tried again later. A
segment that the format cannot express keeps the header that it has, with a warning in the log. When a segment
is deleted, its header is deleted.

Ordering: under one lock, segments in any order, and only after the ownership was proved, so that a fenced
owner writes none. A legacy reader may see a header for a moment that is behind, or none while it is replaced.
Cancellation and crash: the next start checks all. The header of a segment whose deletion was complete except
for the header stays, and legacy readers find its files missing."""

from __future__ import annotations

from contextlib import aclosing, suppress

import anyio
import anyio.lowlevel

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
from ..kernel.slices import in_slices
from ..telemetry.logging import get_logger
from .container_access import ContainerAccess
from .export import export_header, mark_imported
from .header import header_name
from .importing import OWN_CHUNKS

_log = get_logger("headers")
_RETRY_SECONDS = 5.0
_STORAGE_DOWN = (Unavailable, OutcomeUnknown, StorageFull)
"""Errors that the next header would meet too; every other one is about one segment."""


_Outline = tuple[str, str, int, bool]


def _outline(record: SegmentRecord) -> _Outline:
    """What changes whenever a header has to: the chunks at both ends, their number, the seal."""
    return record.first_chunk, record.last_chunk, record.chunk_count, record.sealed


class HeaderUpdates:
    """The headers of one ownership."""

    def __init__(self) -> None:
        self._changed: dict[int, str] = {}
        """Segments whose record changed, and their names; due with the next complete cycle."""
        self._due: dict[int, str] = {}
        self._written: dict[int, _Outline] = {}
        """The content of the headers that this owner has written or checked."""
        self._refused: dict[int, _Outline] = {}
        """What the format could not express of those that it has not written, because a write was under way
        or for good."""
        self._lock = anyio.Lock()
        self._wake = anyio.Event()

    def record_changed(self, sid: int, name: str) -> None:
        """Long-term storage's record of the segment was committed, or removed."""
        self._changed[sid] = name

    def cycle_completed(self) -> None:
        if self._changed:
            self._due |= self._changed
            self._changed.clear()
            self._wake.set()

    async def run(self, container: ContainerAccess) -> None:
        """Write headers as they become due, until cancelled."""
        segments = container.segments
        async with aclosing(container.cold.pages()) as pages:
            async for page in pages:
                self._due |= {sid: name for name, sid in page if not is_staged(name)}
                await anyio.lowlevel.checkpoint()
        # Also those that were deleted while no owner kept headers up to date.
        for dirty in in_slices(segments.dirty_segments()):
            self._due |= {segment.sid: segment.name for segment in dirty if segment.is_gone}
            await anyio.lowlevel.checkpoint()
        while True:
            self._wake = anyio.Event()
            await self.flush(container)
            with anyio.move_on_after(_RETRY_SECONDS if self._due else float("inf")):
                await self._wake.wait()

    async def flush(self, container: ContainerAccess) -> None:
        """Write what is due now. What fails stays due; an error about one segment does not hold up the
        others."""
        async with self._lock:
            # What becomes due meanwhile may be newer than what is written now.
            due, self._due = self._due, {}
            failed: dict[int, str] = {}
            try:
                if due:
                    # Once for all of them: a fenced owner writes none.
                    await container.claim_storage()
                    await container.wait_durable()
                while due:
                    sid, name = next(iter(due.items()))
                    try:
                        await self._write(container, sid, name)
                    except (NotOwner, *_STORAGE_DOWN):
                        raise
                    except TierlogError as error:
                        failed[sid] = name
                        _log.warning("header_failed", segment=name, error=str(error))
                    del due[sid]
            except NotOwner:
                raise
            except TierlogError as error:
                _log.warning("headers_delayed", count=len(due) + len(failed), error=str(error))
            finally:
                # Those that became due meanwhile last: their names are the newest.
                self._due = due | failed | self._due

    async def _write(self, container: ContainerAccess, sid: int, name: str) -> None:
        if is_staged(name) or name.startswith(OWN_CHUNKS):
            return  # legacy software never sees these

        segment = container.segments.get(sid)
        is_cold = segment is None and await container.cold.sid_of(name) == sid
        if not is_cold and (segment is None or segment.is_gone):
            self._written.pop(sid, None)
            self._refused.pop(sid, None)
            await self._remove(container, name)
        # A segment without bytes has no record, and no header.
        elif await container.storage.exists(sid):
            record = await container.storage.info(sid)
            # Most flushes append to the last chunk, which leaves the header as it is.
            if self._written.get(sid) != _outline(record):
                await self._export(container, name, record)

    async def _export(self, container: ContainerAccess, name: str, record: SegmentRecord) -> None:
        await mark_imported(container, name, record.segment)
        chain = await container.storage.chunks(record.segment)
        try:
            await export_header(container.chunks, name, record, chain, replace=True, trusted=True)
        except Unsupported as error:
            if self._refused.get(record.segment) != _outline(record):
                _log.warning("header_unsupported", segment=name, error=str(error))
            self._refused[record.segment] = _outline(record)
        else:
            self._refused.pop(record.segment, None)
            self._written[record.segment] = _outline(record)

    async def _remove(self, container: ContainerAccess, name: str) -> None:
        # The name may belong to a newer segment, whose header this is.
        if await container.cold.sid_of(name) is None:
            with suppress(ChunkNotFound):
                await container.chunks.delete(header_name(name))
