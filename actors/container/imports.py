"""Imports: a segment is made of chunks that are in long-term storage already, of the legacy layout or of a
backup.

Records that are too many for one operation are committed in pieces before it
(``operations/import_segment.py``). Cancellation and crash: the operation is in the log, or nothing has
happened that a reader can see. Records in pieces for an operation that never came are removed by a later
flush cycle, of this owner or the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from ...journal.operations.segment_image import SegmentImage
from ...storage_backends.base.errors import Unavailable
from ...storage_backends.base.lock_table import LockTable
from ...storage_backends.segments.chain import Chain
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from .metadata_store import ATTEMPTS_MAX, LoggedMetadataStore
from .operations.import_segment import ImportRequest, check_free, look_up_import
from .requests import Request
from .state import ContainerState


class SegmentImporter:
    """The imports of one ownership."""

    def __init__(
        self,
        state: ContainerState,
        rows: LoggedMetadataStore,
        storage: ChunkedSegmentStorage,
        ask: Callable[[Request, int], Awaitable[Any]],
        request_cycle: Callable[[], None],
        *,
        index_spacing: int,
    ) -> None:
        """``ask`` sends an internal request of a size in bytes; ``request_cycle()`` asks for a flush cycle,
        which removes what an import left unfinished."""
        self._state = state
        self._rows = rows
        self._storage = storage
        self._ask = ask
        self._request_cycle = request_cycle
        self._index_spacing = index_spacing
        self._names: LockTable[str] = LockTable()

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """One body at a time per name."""
        return self._names.holding(name)

    async def check_free(self, name: str, files: Iterable[str] = ()) -> None:
        """Raises, as far as is known now, why ``files`` cannot become the segment ``name``:
        ``SegmentExists``, ``InvalidArgument``, ``Unavailable``."""
        await check_free(self._state, self._rows, name, tuple(files))

    async def import_chain(self, name: str, chain: Chain) -> None:
        """Make ``chain``, of the legacy layout, the segment ``name`` (rule S14). Raises as ``check_free``."""
        await self._import(ImportRequest.of_chain(name, chain, self._index_spacing))

    async def restore(self, image: SegmentImage, chain: Chain) -> None:
        """Make ``chain``, of a backup, the image's segment (rule S17). Raises as ``check_free``."""
        await self._import(ImportRequest(image, chain, self._index_spacing, is_legacy=False))

    async def _import(self, request: ImportRequest) -> None:
        chain = request.chain
        if self._storage.is_one_piece(chain):
            size = sum(len(chunk.packed_crcs) + len(chunk.packed_starts) + 256 for _, chunk in chain.chunks)
            await self._send(request, size)
            return

        # Before the first piece, so that a refusal leaves nothing to remove. The operation is decided again,
        # in order with all others.
        await look_up_import(self._state, self._rows, request)
        request.adopted = self._state.take_segment_id()
        try:
            await self._storage.adopt(request.adopted, chain)
            await self._send(request, 256)
        finally:
            # If the operation did not reach the log, the adopted records are deferred work from now on, which
            # the cycle removes (S14).
            self._storage.end_adoption(request.adopted)
            self._request_cycle()

    async def _send(self, request: ImportRequest, size: int) -> None:
        for _ in range(ATTEMPTS_MAX):
            await look_up_import(self._state, self._rows, request)
            if await self._ask(request, size) is not None:
                return

        raise Unavailable("metadata changed during each attempt of an import: try again")
