"""The contract of chunk storage (PDP-34): chunks are files or objects that hold exactly the user's bytes
(rule S1). ``tierlog.testing.ChunkStorageConformance`` tests it.

Every backend promises:

* A chunk is the bytes that were written, and nothing else. When a call returns, its effect is durable: bytes,
  name, length, absence.
* All storages on one folder or S3 prefix, in one process or many, see the same chunks. Every call sees what
  earlier calls finished.
* Verbs may run concurrently. At most one creation of a name succeeds.
* The outcome of a cancelled mutation is unknown, but a whole object exists completely or not at all, and the
  storage keeps working.
* No verb retries; the storage actor does, where that is safe (rule A12).

The verbs, with their own errors:

* ``create_with_content`` and ``create`` are conditional: an existing name raises ``ChunkExists`` and its
  chunk is unchanged, and its name is durable, whoever created it. A whole object appears completely or not at
  all (rule S2). After ``StorageFull`` none of the new bytes are visible.
* ``write`` appends: ``offset`` must equal the length, else ``BadChunkOffset(expected=length, given=offset)``.
  Also ``ChunkNotFound``, ``ChunkReadOnly``. A failed write may have left any prefix of its bytes; it is not
  retried (rule S3), the caller begins a new chunk. Writing no bytes at the right offset changes nothing. The
  caller serializes writes to one chunk.
* ``read`` returns fewer bytes than requested only at the chunk's end, and ``b""`` at or past it.
  ``ChunkNotFound``, even for a size of 0. A read during a write sees a prefix of the new bytes.
* ``info`` and ``exists`` see the current length. ``exists`` returns False only if the chunk certainly does
  not exist.
* ``delete`` raises ``ChunkNotFound`` if the chunk is missing; the caller decides whether that is success.
  Read-only chunks are deleted too. Backends allow a name to be created again; rule S2 forbids it to their
  users.
* ``delete_many`` deletes chunks and returns the names of those that were missing. After an error any of them
  may be deleted. Only a storage has it where it costs less than as many calls of ``delete``.
* ``concat`` creates a chunk from exact ranges, in order, and never changes its sources (rule S4). A source
  may occur several times and a range may be empty, but there is at least one. Errors as for a creation, and
  ``ChunkNotFound`` with the name of a missing source, ``BadChunkOffset(expected=length, given=end of the
  range)`` for a short one. If several apply, any of them.
* ``replace`` gives an existing chunk the bytes of exact ranges of others, in one step: whoever reads it
  finds the old bytes or the new ones, also after a crash or an error. Otherwise as ``concat``, and
  ``ChunkNotFound`` if the chunk is missing. Nobody else may change it meanwhile. A store's own names are
  never used twice (rule S2), so it is for copies (rule P7).
* ``set_read_only`` makes a chunk refuse ``write``, or accept it again; reads, concats and deletes still work.
  ``ChunkNotFound``. Idempotent. How far other instances respect it depends on the backend: it protects
  against mistakes only.
* ``list`` yields each chunk once, in the order of the names' characters. ``prefix`` is any beginning of a
  name, not only up to a ``/``. A chunk created or deleted during the list may or may not appear. With
  ``after``, which need not exist, the list begins behind that name, so that a long list can be read in pages.
* ``used_space`` is at least the sum of the lengths of all chunks.
* ``sweep`` removes what dead processes left unfinished and no list shows, such as uploads. It touches no
  chunk and nothing of a living owner. ``Unavailable`` if some of it is left for the next sweep.
* ``open`` and ``close`` are idempotent and may follow each other any number of times.

Errors of all verbs: ``InvalidArgument`` (bad name, number or buffer; the backend was not called),
``ClosedError`` (before ``open`` or after ``close``), ``Unsupported`` (see ``capabilities``), ``Unavailable``
(nothing happened; retry later), ``OutcomeUnknown`` (something may have happened). A backend that does not
answer raises one of the last two, never ``ChunkNotFound``. Foreign exceptions never pass. ``chunk`` of a
``ChunkError`` is the chunk's name.

Chunk names are relative paths: parts of ``[a-zA-Z0-9._$#-]`` joined by ``/``. No part starts with a dot; at
most 255 bytes a part and 512 in all (``check_chunk_name``). So no name can leave the backend's root or change
its meaning by decoding, quoting or normalizing. Only imported files of the legacy layout have names with
``$`` and ``#``. One name may be the folder of another (``a`` and ``a/b``) only on backends without folders; a
file system refuses the second with ``ChunkExists`` or ``InvalidArgument``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint
from msgspec import Struct

from .checksum import Buffer
from .errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from .storage_statistics import ChunkStorageStatistics

_PART = re.compile(r"[a-zA-Z0-9_$#-][a-zA-Z0-9._$#-]{0,254}")
NAME_BYTES_MAX = 512


def check_chunk_name(name: str) -> None:
    """Raise ``InvalidArgument`` unless ``name`` follows the grammar above."""
    if not is_chunk_name(name):
        raise InvalidArgument(
            f"bad chunk name {name[:80]!r}: parts of letters, digits, '.', '_', '$', '#' and '-' joined by "
            f"'/', none starting with '.', {NAME_BYTES_MAX} bytes at most"
        )


def is_chunk_name(name: str) -> bool:
    """Whether ``name`` follows the grammar above."""
    return len(name) <= NAME_BYTES_MAX and all(_PART.fullmatch(part) for part in name.split("/"))


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
            f"the data of chunk {name} must be a list of buffers, not one buffer; put it into a list"
        )

    for buffer in data:
        if type(buffer) is bytes:
            continue
        if not isinstance(buffer, bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"the data of chunk {name} must be bytes, bytearrays or memoryviews, not "
                f"{type(buffer).__name__}"
            )
        if isinstance(buffer, memoryview) and not (buffer.c_contiguous and buffer.itemsize == 1):
            raise InvalidArgument(
                f"a memoryview in the data of chunk {name} is not contiguous bytes; cast it to 'B' or copy it"
            )


class Capabilities(Struct, frozen=True):
    """What a storage can do; constant. A verb that needs a missing capability raises ``Unsupported`` and does
    nothing."""

    append: bool
    """``create``, and ``write`` at the end of an existing chunk. Without it every write is a new chunk."""
    concat: bool
    """``concat``, natively or by copying, without consuming its sources."""
    delete_many: bool = False
    replace: bool = False
    reads_are_durable: bool = False
    """Whatever a read returns survives any crash, as in an object store. A file system reads its page cache:
    a chunk whose creation had an unknown outcome may be visible now and gone after a power loss."""


class ChunkInfo(Struct, frozen=True):
    name: str
    length: int
    read_only: bool = False
    """Whether it refuses writes. Set by ``info`` only, and False if the backend does not know."""


class ChunkRange(Struct, frozen=True):
    """The bytes ``offset .. offset + length`` of one chunk."""

    name: str
    offset: int
    length: int


class ChunkStorage(ABC):
    """The contract is in the module's docstring. To implement it, inherit from
    ``tierlog.storage_backends.chunks.base.BaseChunkStorage``."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    async def open(self) -> None:
        """Prepare the folder or prefix and remove what dead processes left unfinished. Idempotent."""

    @abstractmethod
    async def close(self) -> None:
        """Give back connections and files, also if the caller is cancelled."""

    def admit(self, name: str) -> None:  # noqa: B027 - a storage may admit everything
        """Raise ``Unavailable`` or ``StorageFull`` if growing that chunk would certainly fail now (rule S7).

        Called before a chunk is named and tracked, or appended to, so that a storage that is down costs
        nothing above it. Never suspends. By default everything is admitted.
        """

    def retry_in(self) -> float:
        """Seconds for which every change would be refused, because the storage fails again and again (rule
        S7); 0.0 if changes may be tried. Never suspends."""
        return 0.0

    def notifying(self, notify: Callable[[], None]) -> AbstractContextManager[None]:
        """Inside the body ``notify()`` is called when changes may be tried again before ``retry_in`` is over:
        one has succeeded. By default never."""
        return nullcontext()

    @abstractmethod
    async def exists(self, name: str) -> bool: ...

    @abstractmethod
    async def info(self, name: str) -> ChunkInfo: ...

    @abstractmethod
    async def create(self, name: str) -> None:
        """Create an empty chunk. ``Unsupported`` without the append capability, because it could never
        grow."""

    @abstractmethod
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """Create a chunk with the content ``data``, which may be empty, or nothing at all. Returns its
        length."""

    @abstractmethod
    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """Append ``data`` at ``offset``, the length. Returns the new length."""

    @abstractmethod
    async def read(self, name: str, offset: int, size: int) -> bytes: ...

    async def drop_copy(self, name: str) -> bool:
        """Forget a local copy of the chunk, because bytes that were read are not the right ones. Returns
        whether the next read comes from another place. By default there are no copies."""
        await checkpoint()
        return False

    @abstractmethod
    async def delete(self, name: str) -> None: ...

    async def delete_many(self, names: Sequence[str]) -> Sequence[str]:
        """Delete the chunks ``names``, at least one. Returns those that were missing. By default
        ``Unsupported``."""
        await checkpoint()
        raise Unsupported("this chunk storage deletes one chunk at a time: use delete")

    @abstractmethod
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        """Create the chunk ``name`` from ``ranges``, in order. Returns its length."""

    async def replace(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        """Replace the bytes of the chunk ``name`` by ``ranges``, in order. Returns its length. By default
        ``Unsupported``."""
        await checkpoint()
        raise Unsupported("this chunk storage replaces no chunks: create another one")

    @abstractmethod
    async def set_read_only(self, name: str, read_only: bool) -> None: ...

    @abstractmethod
    def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        """All chunks whose name starts with ``prefix`` and is greater than ``after``, in name order. Close
        the generator if you leave it early."""

    @abstractmethod
    async def used_space(self) -> int:
        """Bytes in use."""

    async def sweep(self) -> None:
        """Remove what dead processes left unfinished. Called periodically while the storage is open. By
        default there is nothing to remove."""
        await checkpoint()

    @abstractmethod
    def statistics(self) -> ChunkStorageStatistics: ...
