"""What the recovered log knows of its segments, and which chunks prove that it is older than long-term
storage (rule G4). Sync.

Bytes are flushed once they are durable in the log. So a chunk of a dead owner never reaches beyond the length
that its segment has when the log is recovered, nor does it belong to a segment that the log never created.
One that does was flushed by a history which this log does not have: an old backup of it was put back in
place, and no claim shows that. Chunks of segments that were merged by then are no proof: the bytes of their
targets may have followed theirs."""

from __future__ import annotations

from collections.abc import Sequence

import anyio.lowlevel

from ...journal.operations.segment_image import SegmentStatus
from ...storage_backends.base.chunk_storage import ChunkInfo
from ...storage_backends.base.sharded_dict import ShardedDict
from ..gc.rules import ChunkOrigin, parse_chunk_name
from ..kernel.slices import in_slices
from .cold_segments import ColdSegments
from .segments import SegmentState
from .state import ContainerState


class RecoveredHistory:
    """The segments that were live when the log was recovered, and their lengths, until ``forget``. A listing
    may be delayed for long, and segments change, come and go meanwhile."""

    def __init__(self, state: ContainerState, cold: ColdSegments) -> None:
        self._state = state
        self._cold = cold
        self._lengths: ShardedDict[int, int] = ShardedDict()
        self._newest: int | None = None
        """The highest segment id; None if the log may have used higher ones."""
        self._is_noting = False

    async def note_lengths(self) -> None:
        """Call it between recovery and the first request. Cold segments are not noted: their images have
        their lengths until they are loaded."""
        self._is_noting = True
        self._newest = self._state.known_newest_segment
        for segments in in_slices(self._state.segments.by_id.values()):
            live = (segment for segment in segments if segment.status is SegmentStatus.LIVE)
            self._lengths.update((segment.sid, segment.length) for segment in live)
            await anyio.lowlevel.checkpoint()

    def note_loaded(self, segment: SegmentState) -> None:
        """A cold segment comes into memory, and may be changed next."""
        if self._is_noting:
            # The first load counts: by the next one this ownership may have appended to it.
            self._lengths.setdefault(segment.sid, segment.length)

    def forget(self) -> None:
        self._is_noting = False
        self._lengths = ShardedDict()

    async def find_newer(self, chunks: Sequence[ChunkInfo], oldest: int) -> ChunkInfo | None:
        """A chunk of an owner from epoch ``oldest`` on that this log's owners cannot have flushed. Raises
        ``Unavailable`` if images cannot be read."""
        origins = [
            (chunk, origin)
            for chunk in chunks
            if (origin := parse_chunk_name(chunk.name)) is not None and origin.epoch >= oldest
        ]
        unknown = dict.fromkeys(origin.segment for _, origin in origins)
        cold = await self._cold.lengths(sid for sid in unknown if sid not in self._lengths)
        # Those that are loaded during the lookup are noted by then.
        lengths = {sid: self._lengths.get(sid, cold.get(sid)) for sid in unknown}
        newer = (chunk for chunk, origin in origins if self._is_newer(chunk, origin, lengths[origin.segment]))
        return next(newer, None)

    def _is_newer(self, chunk: ChunkInfo, origin: ChunkOrigin, length: int | None) -> bool:
        if length is None:
            # It was merged or deleted, or created by a history that this log does not have.
            return self._newest is not None and origin.segment > self._newest

        return origin.offset + chunk.length > length
