"""Segments that come into a container with their chunks: imported from the legacy layout, or restored from a
backup; and the way back.

Owns: the way from files in long-term storage to one ``ImportSegment``, on demand and at first access, and a
segment's export. Does not own: the files' format (``storage_backends/segments/rolling``), nor the decision,
which the pipeline makes in sequence with everything else.

At first access: a name that the container does not know is looked up in long-term storage before its caller
is told that there is none. That costs two requests for each such call, and the import reads all bytes of the
segment and marks whose files it takes (``file_marks.py``). One import of a name at a time; a caller that is
cancelled leaves nothing behind, and the next one begins again. A name is imported once in a container's life
(rule S14).

Names below ``containers/`` are chunks of this very store and never segments, and a header that lists such
chunks was exported by it: their life ends with their records, so nothing else may refer to them. What lies
below ``_system/`` is the store's own too: an imported file is deleted with its segment, and no header may
make a claim or a backup one. Cancellation and crash: the operation is in the log, or nothing happened that
anybody sees. Records that are too many for one operation are laid in pieces before it, and taken back, by
this owner or the next, if it does not come (``operations/adopt.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

import anyio

from ...journal.operations.segment_image import SegmentImage
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    MetadataConflict,
    SegmentExists,
    SegmentNotFound,
    TierlogError,
    Unsupported,
)
from ...storage_backends.base.names import SYSTEM_SCOPE
from ...storage_backends.base.transactions import is_staged
from ...storage_backends.segments.chain import Chain
from ...storage_backends.segments.core import ChunkedOptions
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ..container.metadata_store import LoggedMetadataStore
from ..container.operations.create import CreateRequest
from ..container.operations.import_segment import ImportRequest, check_files_free, check_name_free
from ..container.operations.queries import WaitDurableRequest
from ..container.requests import Request
from ..container.state import ContainerState
from ..flush.writer import StorageWriter
from ..settings.layout_mode import LayoutMode
from ..telemetry.logging import get_logger
from .export import Exported, export
from .file_claims import claim_files
from .find import LegacySegment, find
from .imported_record import ImportedRecord, imported_key
from .read_chain import Progress, no_progress, read_chain

_log = get_logger("older")

OWN_CHUNKS = "containers/"
"""Where this package keeps its own chunks."""


Ask = Callable[[Request, int], Awaitable[Any]]


class LegacyParts(Protocol):
    """What an import needs of its container's parts."""

    @property
    def storage(self) -> ChunkedSegmentStorage: ...
    @property
    def writer(self) -> StorageWriter: ...


class LegacyOptions(Protocol):
    """What it needs of the container's options."""

    @property
    def chunked(self) -> ChunkedOptions: ...
    @property
    def layout(self) -> LayoutMode: ...


class LegacySegments:
    """The imports of one ownership."""

    def __init__(
        self,
        chunks: ChunkStorage,
        state: ContainerState,
        ask_internal: Ask,
        claim: Callable[[], Awaitable[None]],
        parts: Callable[[], LegacyParts],
        options: LegacyOptions,
    ) -> None:
        """``claim()`` returns once this owner may write to long-term storage; ``parts()`` are there once the
        container answers."""
        self.chunks = chunks
        self._claim = claim
        self._state = state
        self._ask = ask_internal
        self._parts = parts
        self._options = options.chunked
        self.looks = options.layout.imports_legacy
        """Whether unknown names are looked up at all."""
        self._turns: dict[str, anyio.Lock] = {}

    def may_know(self, name: str) -> bool:
        """Whether ``name`` is unknown here and worth a look, which ``bring`` takes."""
        return self.looks and self._state.segments.sid_of(name) is None and not is_staged(name)

    async def bring(self, name: str) -> bool:
        """Import ``name`` if the legacy layout has it; whether it is a segment of the container now."""
        if not self.looks or is_staged(name):
            return False

        if self.may_know(name) and imported_key(name) not in self._state.metadata:
            with suppress(SegmentNotFound, SegmentExists):  # there is none, or it came into being meanwhile
                await self._in_turn(name, self._bring)
        return self._state.segments.sid_of(name) is not None

    async def take(self, name: str, progress: Progress = no_progress) -> int:
        """Import ``name`` on demand; its length. ``SegmentNotFound``, ``SegmentExists``, ``InvalidArgument``,
        ``DataCorruption``."""
        try:
            return await self._in_turn(name, lambda wanted: self._take(wanted, progress))
        except (SegmentExists, SegmentNotFound, InvalidArgument, DataCorruption):
            await self._wait_durable()
            raise

    async def restore(self, image: SegmentImage, chain: Chain) -> None:
        """The image's segment out of chunks that are there (rule S17). ``SegmentExists``,
        ``InvalidArgument``."""
        await self._put(ImportRequest(image, chain, self._options.index_spacing, is_legacy=False))

    async def export(self, storage: ChunkedSegmentStorage, name: str, *, replace: bool) -> Exported:
        """Write the header that says what is flushed of ``name``. ``SegmentNotFound``, ``Unsupported``,
        ``InvalidArgument``."""
        if name.startswith(OWN_CHUNKS):
            raise InvalidArgument(
                f"{name!r} cannot be exported: names below {OWN_CHUNKS!r} are those of this store's chunks"
            )
        segment = self._state.segments.find(name)
        if segment is None:
            raise SegmentNotFound(f"no segment {name!r}", segment=name)

        await self.prove()
        if not segment.has_record:
            raise Unsupported(f"nothing of {name!r} is in long-term storage yet: flush, then export it")
        await self.disown(name, segment.sid)
        await self._wait_durable()
        record = await storage.info(segment.sid)
        return await export(self.chunks, name, record, await storage.chunks(segment.sid), replace=replace)

    async def disown(self, name: str, sid: int) -> None:
        """Record that ``name`` is never looked up in the legacy layout (rule S14), before it gets a header of
        this store's making: that one would bring a deleted segment back, until it is removed, or for ever
        after a crash. Another one's record is sure once settled."""
        key = imported_key(name)
        if key in self._state.metadata:
            return

        try:
            await LoggedMetadataStore(self._state, self._ask).commit(
                {key: 0}, {key: ImportedRecord(sid).encode()}
            )
        except MetadataConflict:
            await self._wait_durable()

    async def prove(self) -> None:
        """Return if this owner may write to long-term storage, and what it read of its state is durable."""
        await self._claim()
        await self._wait_durable()

    async def ask(self, ask: Ask, request: Request, size: int) -> Any:
        """``ask``, with a look into the legacy layout where the answer depends on one."""
        if isinstance(request, CreateRequest):
            await self.bring(request.name)
        while True:
            try:
                return await ask(request, size)
            except SegmentNotFound as missing:
                if not await self.bring(missing.segment):
                    await self._wait_durable()
                    raise

    async def _wait_durable(self) -> None:
        """Return if this is still the owner: who was succeeded refuses nothing by what it knew, or by files
        that are gone since (C1)."""
        await self._ask(WaitDurableRequest(), 0)

    async def _in_turn(self, name: str, act: Callable[[str], Awaitable[int]]) -> int:
        turn = self._turns.setdefault(name, anyio.Lock())
        try:
            async with turn:
                return await act(name)
        finally:
            if not turn.statistics().tasks_waiting and not turn.locked():
                self._turns.pop(name, None)

    async def _bring(self, name: str) -> int:
        if not self.may_know(name) or imported_key(name) in self._state.metadata:
            return 0  # somebody else has just brought it

        try:
            return await self._take(name, no_progress)
        except (SegmentNotFound, SegmentExists):
            raise
        except TierlogError as error:
            _log.warning("import_failed", segment=name, error=str(error))
            await self._wait_durable()
            raise

    async def _take(self, name: str, progress: Progress) -> int:
        check_name_free(self._state, name)  # who had the turn before may have imported it
        found = await self._find(name)
        # Before the reading too: a file that was released then may be gone, with its record, when the import
        # is decided.
        check_files_free(self._state, name, (chunk.name for chunk in found.chunks))
        chain = await read_chain(self.chunks, found, self._options.rolling_size, progress)
        await self._claim()
        await claim_files(self.chunks, name, (chunk.name for _, chunk in chain.chunks))
        await self._put(ImportRequest.of_chain(name, chain, self._options.index_spacing))
        _log.info("imported", segment=name, length=found.length, chunks=len(found.chunks))
        return found.length

    async def _put(self, request: ImportRequest) -> None:
        """Make the segment, in one operation or with the records laid in pieces before it (rule S14)."""
        storage, chain, name = self._parts().storage, request.chain, request.image.name
        if storage.is_one_piece(chain):
            await self._ask(
                request,
                sum(len(chunk.packed_crcs) + len(chunk.packed_starts) + 256 for _, chunk in chain.chunks),
            )
            return

        check_name_free(self._state, name, is_legacy=request.is_legacy)
        check_files_free(self._state, name, (chunk.name for _, chunk in chain.chunks))
        request.adopted = self._state.take_segment_id()
        try:
            await storage.adopt(request.adopted, chain)
            await self._ask(request, 256)
        finally:
            storage.end_adoption(request.adopted)
            self._parts().writer.request_cycle()  # a cycle runs the deferred work

    async def _find(self, name: str) -> LegacySegment:
        found = None if name.startswith(OWN_CHUNKS) else await find(self.chunks, name)
        if found is None or any(chunk.name.startswith((OWN_CHUNKS, SYSTEM_SCOPE)) for chunk in found.chunks):
            raise SegmentNotFound(
                f"the legacy layout has no segment {name!r} that could be imported", segment=name
            )

        return found
