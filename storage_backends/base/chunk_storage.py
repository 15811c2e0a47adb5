"""The contract of tier 2 (PDP-34): chunks, which are files or objects that hold exactly the user's bytes
(rule S1).

Owns: the verbs, their obligations and their errors. ``tierlog.testing.ChunkStorageConformance`` is this page
as tests.

Every backend promises:

* A chunk is the bytes that were written, no more, under its name. What returned is durable: bytes, name,
  length, absence.
* Several storages on one place, in one process or many, see one set of chunks. What one call finished, every
  later call sees.
* Verbs may run at the same time. Each creation of a name is won by one at most.
* A cancelled mutation has an unknown outcome, and the storage serves on. A whole object is there complete or
  not at all all the same.
* No verb tries again; the storage actor does, where that is safe (rule A12).

Verb by verb, with the errors that are its own:

* ``create_with_content``, ``create``: conditional, an existing name raises ``ChunkExists`` and stays as it
  is. A whole object appears complete or not at all (rule S2). ``StorageFull`` is about the new
  bytes; nothing of them is visible.
* ``write`` appends: ``offset`` must equal the length, else ``BadChunkOffset(expected=length, given=offset)``.
  ``ChunkNotFound``, ``ChunkReadOnly``. A write that failed may have left any prefix of its bytes; nobody
  retries it (rule S3), the caller starts a new chunk. Writing nothing at the right offset changes nothing.
  Its caller lets writes to one chunk wait for each other.
* ``read`` gives fewer bytes than asked only at the chunk's end; at or past the end, and for a size of 0,
  ``b""``. ``ChunkNotFound``, also when nothing was asked for. A reader during a write sees a prefix of the
  new bytes.
* ``info``, ``exists``: the length now. ``exists`` is False only if there is surely no such chunk.
* ``delete``: ``ChunkNotFound`` if it is missing; the caller decides whether that is success. Read-only chunks
  go too. A name may be created again afterwards as far as the backend is concerned; rule S2 forbids it to
  those who use it.
* ``concat`` makes a new chunk from exact ranges, in order, and never changes its sources (rule S4). A source
  may come several times, and a range may be empty, but there is at least one. Like a creation, and
  ``ChunkNotFound`` names a missing source, ``BadChunkOffset(expected=length, given=end of the range)`` a
  short one. If several errors apply, it raises any of them.
* ``set_read_only`` makes a chunk refuse ``write``, or accept it again; it is read, concatenated and deleted
  as before. ``ChunkNotFound``. Saying it twice is fine. How far other instances heed
  it is the backend's matter: it guards against mistakes only.
* ``list`` gives each chunk once, in the order of the names' characters. ``prefix`` is the beginning of a
  name's text, of any length, and need not end at a ``/``; one that no name has gives nothing. A chunk created
  or deleted meanwhile may or may not appear. With ``after``, a name that need not be there, it begins behind
  that name: so a long list is read in pages, each as cheap as the backend can make it.
* ``used_space`` is at least the length of all chunks together.
* ``sweep`` removes what dead processes left unfinished and no list shows, such as uploads; it touches no
  chunk and nothing of a living owner. ``Unavailable`` if some of it stays until the next one.
* ``open`` and ``close`` are idempotent, and may follow each other any number of times.

Errors of all verbs: ``InvalidArgument`` (a name, number or buffer that is none; nothing was asked of the
backend), ``ClosedError`` (before ``open``, after ``close``), ``Unsupported`` (``capabilities`` says so),
``Unavailable`` (nothing happened; try later), ``OutcomeUnknown`` (something may have happened). A backend
that is asked in vain says one of the last two, never ``ChunkNotFound``. Foreign exceptions never pass.
``chunk`` of a ``ChunkError`` is the name that it is about.

A name may be the folder of another one (``a`` and ``a/b``) only where the backend has no folders; a file
system refuses the second of the two with ``ChunkExists`` or ``InvalidArgument``.

Chunk names are relative paths of ``[a-zA-Z0-9._$#-]`` parts joined by ``/``; no part is ``.`` or ``..`` or
starts with a dot; at most 255 bytes a part and 512 in all (``check_chunk_name``). None can leave the
backend's root, and none means anything else after decoding, quoting or normalizing. ``$`` and ``#`` are there
for imported files of the legacy layout; no other name has them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence

import attrs
from anyio.lowlevel import checkpoint

from .checksum import Buffer
from .errors import InvalidArgument
from .statistics import counter

_PART = re.compile(r"[a-zA-Z0-9_$#-][a-zA-Z0-9._$#-]{0,254}")
NAME_BYTES_MAX = 512


def check_chunk_name(name: str) -> None:
    """Raise ``InvalidArgument`` unless ``name`` follows the grammar above."""
    if len(name) > NAME_BYTES_MAX or not all(_PART.fullmatch(part) for part in name.split("/")):
        raise InvalidArgument(
            f"bad chunk name {name[:80]!r}: parts of letters, digits, '.', '_', '$', '#' and '-' joined by "
            f"'/', "
            f"none starting with '.', {NAME_BYTES_MAX} bytes at most"
        )


def can_begin_chunk_name(prefix: str) -> bool:
    """Whether some chunk name begins with ``prefix``."""
    *whole, last = prefix.split("/")
    return (
        len(prefix) <= NAME_BYTES_MAX
        and all(_PART.fullmatch(part) for part in whole)
        and (not last or bool(_PART.fullmatch(last)))
    )


def check_buffers(name: str, data: Sequence[Buffer]) -> None:
    """Raise ``InvalidArgument`` unless ``data`` is a sequence of buffers of plain contiguous bytes."""
    if isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgument(
            f"the data of chunk {name} is a list of buffers, not one buffer; put it into a list"
        )

    for buffer in data:
        if type(buffer) is bytes:
            continue
        if not isinstance(buffer, bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"the data of chunk {name} is bytes, bytearrays and memoryviews, not {type(buffer).__name__}"
            )
        if isinstance(buffer, memoryview) and not (buffer.c_contiguous and buffer.itemsize == 1):
            raise InvalidArgument(
                f"a memoryview in the data of chunk {name} is not plain contiguous bytes; cast it to 'B' or "
                f"copy it"
            )


@attrs.frozen
class Capabilities:
    """What a storage can do, for as long as it lives. A verb that needs what is missing raises
    ``Unsupported`` and does nothing."""

    append: bool
    """``create``, and ``write`` at the end of an existing chunk. Without it every write is a new chunk."""
    concat: bool
    """``concat`` works natively or by copying, without consuming its sources."""
    reads_are_durable: bool = False
    """What a read shows survives any crash, as in an object store. A file system shows its page cache: a
    chunk whose creation had an unknown outcome may be seen now and be gone after a power loss, so seeing it
    proves nothing."""


@attrs.frozen
class ChunkInfo:
    name: str
    length: int
    read_only: bool = False
    """Whether it refuses writes. Only ``info`` tells it, ``list`` does not; False where the backend cannot
    tell."""


@attrs.frozen
class ChunkRange:
    """The bytes ``offset .. offset + length`` of one chunk."""

    name: str
    offset: int
    length: int


@attrs.frozen
class ChunkVerbStatistics:
    calls: int = attrs.field(metadata=counter("Calls of the verb."))
    failures: int = attrs.field(metadata=counter("Calls that raised an error."))
    seconds: float = attrs.field(metadata=counter("Seconds spent in the verb's calls, all of them added."))


@attrs.frozen
class ChunkErrorStatistics:
    raised: int = attrs.field(metadata=counter("Errors of this kind that calls raised."))


@attrs.frozen
class ChunkStorageStatistics:
    """Counts since it was made; bytes are user bytes."""

    creates: int = attrs.field(default=0, metadata=counter("Chunks created."))
    writes: int = attrs.field(default=0, metadata=counter("Writes to existing chunks."))
    reads: int = attrs.field(default=0, metadata=counter("Reads."))
    deletes: int = attrs.field(default=0, metadata=counter("Chunks deleted."))
    bytes_written: int = attrs.field(default=0, metadata=counter("Bytes written."))
    bytes_read: int = attrs.field(default=0, metadata=counter("Bytes read."))
    verbs: Mapping[str, ChunkVerbStatistics] = attrs.field(factory=dict)
    """By the verb's name."""
    errors: Mapping[str, ChunkErrorStatistics] = attrs.field(factory=dict)
    """By the error's ``code``."""


class ChunkStorage(ABC):
    """See the module's head for what each verb promises. ``tierlog.storage_backends.chunks.base`` makes a new
    backend short."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    async def open(self) -> None:
        """Prepare the root, sweep temporary names of dead processes. Idempotent."""

    @abstractmethod
    async def close(self) -> None: ...

    def admit(self, name: str) -> None:  # noqa: B027 - refusing nothing is a right answer
        """Raise ``Unavailable`` or ``StorageFull`` if a new chunk of that name would surely be refused now
        (rule S7).

        Asked before a chunk is named and tracked, so that trouble below costs nothing above. Never suspends;
        here nothing is ever refused.
        """

    @abstractmethod
    async def exists(self, name: str) -> bool: ...

    @abstractmethod
    async def info(self, name: str) -> ChunkInfo: ...

    @abstractmethod
    async def create(self, name: str) -> None:
        """Make an empty chunk. ``Unsupported`` without the append capability (an empty chunk could never
        grow)."""

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
    async def set_read_only(self, name: str, read_only: bool) -> None: ...

    @abstractmethod
    def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        """All chunks whose name starts with ``prefix`` and is greater than ``after``, in name order. Close
        the generator if you leave it early."""

    @abstractmethod
    async def used_space(self) -> int:
        """Bytes in use, as far as the backend can tell cheaply."""

    async def sweep(self) -> None:
        """Remove what dead processes left unfinished. Called now and then while the storage is open; here
        nothing is ever left."""
        await checkpoint()

    @abstractmethod
    def statistics(self) -> ChunkStorageStatistics: ...
