"""What every chunk storage does alike: argument checks, the closed check and the counters.

Owns: ``CountedChunkStorage``, the base of the backends here. Does not own: any byte.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.checksum import Buffer
from ..base.chunk_storage import ChunkRange, ChunkStorage, ChunkStorageStatistics, check_chunk_name
from ..base.errors import BadChunkOffset, ClosedError, InvalidArgument, Unsupported


class CountedChunkStorage(ChunkStorage):
    def __init__(self) -> None:
        self._is_open = False
        self._creates = self._writes = self._reads = self._deletes = self._bytes_written = self._bytes_read = 0

    def statistics(self) -> ChunkStorageStatistics:
        return ChunkStorageStatistics(self._creates, self._writes, self._reads, self._deletes, self._bytes_written, self._bytes_read)

    async def truncate(self, name: str, length: int) -> None:
        self._check(name, length)
        raise Unsupported("this chunk storage cannot truncate chunks")

    def _check(self, name: str, *numbers: int) -> None:
        """Raise unless the storage is open, ``name`` is one and no number is negative."""
        self._check_open()
        check_chunk_name(name)
        if any(number < 0 for number in numbers):
            raise InvalidArgument(f"offsets, sizes and lengths must not be negative: {numbers} for chunk {name}")

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError("the chunk storage is not open; open it first")

    def _check_append(self, name: str) -> None:
        if not self.capabilities.append:
            raise Unsupported(f"this chunk storage cannot append; create chunk {name} with its content instead")

    def _check_concat(self, name: str, ranges: Sequence[ChunkRange]) -> None:
        self._check(name)
        if not ranges:
            raise InvalidArgument(f"concat to {name} needs at least one range")

        for part in ranges:
            self._check(part.name, part.offset, part.length)

    def _count_create(self, size: int) -> None:
        self._creates += 1
        self._bytes_written += size

    def _count_write(self, size: int) -> None:
        self._writes += 1
        self._bytes_written += size

    def _count_read(self, size: int) -> None:
        self._reads += 1
        self._bytes_read += size


def size_of(data: Sequence[Buffer]) -> int:
    """The bytes in all buffers."""
    return sum(memoryview(buffer).nbytes for buffer in data)


def bad_offset(name: str, length: int, given: int) -> BadChunkOffset:
    return BadChunkOffset(f"chunk {name} has {length} bytes, offset {given} was given", chunk=name, expected=length, given=given)
