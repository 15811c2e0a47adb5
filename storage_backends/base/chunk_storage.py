"""The contract of tier 2 (PDP-34): chunks, which are files or objects that hold exactly the user's bytes (rule S1).

Owns: the verbs, their obligations and their errors. ``tierlog.testing.ChunkStorageConformance`` is this page as tests.

Every backend promises:

* ``create`` and ``create_with_content`` are conditional: an existing name raises ``ChunkExists``, also between processes.
  A whole object appears complete or not at all (rule S2, hole 31).
* When ``write``, ``create`` or ``create_with_content`` return, the bytes and the name are durable.
* ``write`` appends: ``offset`` must equal the length, else ``BadChunkOffset(expected=length, given=offset)``. A write that failed may have
  left any prefix of its bytes; nobody retries it (rule S3), the caller starts a new chunk.
* ``concat`` makes a new chunk from exact ranges and never changes its sources (rule S4).
* ``delete`` of a missing chunk raises ``ChunkNotFound``; the caller decides whether that is success.
* ``read`` may return fewer bytes than asked only at the chunk's end; at or past the end it returns ``b""``.
* Errors: ``ChunkNotFound``, ``ChunkExists``, ``BadChunkOffset``, ``ChunkReadOnly``, ``ClosedError``, ``Unsupported``, ``InvalidArgument``,
  ``StorageFull``,
  ``Unavailable`` (nothing happened), ``OutcomeUnknown`` (something may have happened). Foreign exceptions never pass.
* Cancellation: a cancelled mutation has an unknown outcome.

Chunk names are relative paths of ``[a-zA-Z0-9._-]`` parts joined by ``/``; no part is ``.`` or ``..`` or starts with a dot; at most 255
bytes a part and 512 in all (``check_chunk_name``). None can leave the backend's root.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence

import attrs

from .checksum import Buffer
from .errors import InvalidArgument
from .statistics import counter

_PART = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,254}")
NAME_BYTES_MAX = 512


def check_chunk_name(name: str) -> None:
    """Raise ``InvalidArgument`` unless ``name`` follows the grammar above."""
    if len(name) > NAME_BYTES_MAX or not all(_PART.fullmatch(part) for part in name.split("/")):
        raise InvalidArgument(
            f"bad chunk name {name[:80]!r}: parts of letters, digits, '.', '_' and '-' joined by '/', "
            f"none starting with '.', {NAME_BYTES_MAX} bytes at most"
        )


@attrs.frozen
class Capabilities:
    append: bool
    """``write`` at the end of an existing chunk works; without it every write is a new chunk."""
    concat: bool
    """``concat`` works natively or by copying, without consuming its sources."""
    truncate: bool = False
    reads_are_durable: bool = False
    """What a read shows survives any crash, as in an object store. A file system shows its page cache: a chunk whose creation had an
    unknown outcome may be seen now and be gone after a power loss, so seeing it proves nothing."""


@attrs.frozen
class ChunkInfo:
    name: str
    length: int


@attrs.frozen
class ChunkRange:
    """The bytes ``offset .. offset + length`` of one chunk."""

    name: str
    offset: int
    length: int


@attrs.frozen
class ChunkStorageStatistics:
    """Counts since it was made; bytes are user bytes."""

    creates: int = attrs.field(default=0, metadata=counter("Chunks created."))
    writes: int = attrs.field(default=0, metadata=counter("Writes to existing chunks."))
    reads: int = attrs.field(default=0, metadata=counter("Reads."))
    deletes: int = attrs.field(default=0, metadata=counter("Chunks deleted."))
    bytes_written: int = attrs.field(default=0, metadata=counter("Bytes written."))
    bytes_read: int = attrs.field(default=0, metadata=counter("Bytes read."))


class ChunkStorage(ABC):
    """See the module's head for what each verb promises."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    async def open(self) -> None:
        """Prepare the root, sweep temporary names of dead processes. Idempotent."""

    @abstractmethod
    async def close(self) -> None: ...

    def admit(self, name: str) -> None:  # noqa: B027 - refusing nothing is a right answer
        """Raise ``Unavailable`` or ``StorageFull`` if a new chunk of that name would surely be refused now (rule S7).

        Asked before a chunk is named and tracked, so that trouble below costs nothing above. Never suspends; here nothing is ever refused.
        """

    @abstractmethod
    async def exists(self, name: str) -> bool: ...

    @abstractmethod
    async def info(self, name: str) -> ChunkInfo: ...

    @abstractmethod
    async def create(self, name: str) -> None:
        """Make an empty chunk. ``Unsupported`` without the append capability (an empty chunk could never grow)."""

    @abstractmethod
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """Make a chunk that holds ``data``; returns its length. All or nothing. Empty content is allowed."""

    @abstractmethod
    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """Append ``data`` at ``offset`` (the length); returns the new length."""

    @abstractmethod
    async def read(self, name: str, offset: int, size: int) -> bytes: ...

    @abstractmethod
    async def delete(self, name: str) -> None: ...

    @abstractmethod
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        """Make the new chunk ``name`` out of ``ranges``, in order; returns its length."""

    @abstractmethod
    async def truncate(self, name: str, length: int) -> None: ...

    @abstractmethod
    async def set_read_only(self, name: str, read_only: bool) -> None: ...

    @abstractmethod
    def list(self, prefix: str) -> AsyncGenerator[ChunkInfo, None]:
        """All chunks whose name starts with ``prefix``, in name order. Created or deleted meanwhile: may or may not appear."""

    @abstractmethod
    async def used_space(self) -> int:
        """Bytes in use, as far as the backend can tell cheaply."""

    @abstractmethod
    def statistics(self) -> ChunkStorageStatistics: ...
