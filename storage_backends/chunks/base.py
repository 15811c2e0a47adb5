"""``BaseChunkStorage``: what every chunk storage does alike, so that a backend implements only its own calls.

Every public verb of the contract is final here: it checks that the storage is open, the arguments and the
capabilities, counts calls, errors and seconds, calls the observer, and maps foreign exceptions. A backend
implements the verbs with an underscore. They are called only while the storage is open, with valid arguments,
and only if ``capabilities`` allows.

``open`` and ``close`` wait for each other; other verbs run concurrently. A cancellation passes through and is
not counted as an error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol, final

import anyio
import anyio.lowlevel
from msgspec import Struct

from ..base.checksum import Buffer
from ..base.chunk_storage import (
    ChunkInfo,
    ChunkRange,
    ChunkStorage,
    can_begin_chunk_name,
    check_buffers,
    check_chunk_name,
)
from ..base.errors import (
    BadChunkOffset,
    ChunkExists,
    ChunkNotFound,
    ChunkReadOnly,
    ClosedError,
    InvalidArgument,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from ..base.storage_statistics import ChunkStorageStatistics

READS = ("open", "close", "exists", "info", "read", "list", "used_space", "sweep")
MUTATIONS = (
    "create",
    "create_with_content",
    "write",
    "delete",
    "delete_many",
    "concat",
    "replace",
    "set_read_only",
)
"""The verbs whose outcome is unknown after an unexpected exception."""
ERRORS = (
    ChunkNotFound,
    ChunkExists,
    BadChunkOffset,
    ChunkReadOnly,
    ClosedError,
    Unsupported,
    InvalidArgument,
    StorageFull,
    Unavailable,
    OutcomeUnknown,
)
"""The errors of the contract, counted from 0 on, so that a metrics system sees the first one as a change."""


class ChunkObserver(Protocol):
    """Observes calls, for tracing. A store's span hook is one."""

    def __call__(self, name: str, attributes: Mapping[str, object]) -> AbstractContextManager[object]:
        """Return a context manager to enter around the call; errors pass through it."""
        ...


class _VerbCounts(Struct, eq=False):
    calls: int = 0
    failures: int = 0
    seconds: float = 0.0


class BaseChunkStorage(ChunkStorage):
    """The base class of chunk storages. A subclass calls ``super().__init__()``."""

    def __init__(self) -> None:
        self._is_open = False
        # ``open`` and ``close`` await; two at a time could leave a storage half open.
        self._opening = anyio.Lock()
        self._observer: ChunkObserver | None = None
        self._verbs = {verb: _VerbCounts() for verb in READS + MUTATIONS}
        self._errors = {error.code: 0 for error in ERRORS}
        self._creates = self._writes = self._reads = self._deletes = self._bytes_written = (
            self._bytes_read
        ) = 0

    @final
    def observe(self, observer: ChunkObserver | None) -> None:
        """Have ``observer`` observe every call except ``list``, whose generator may stay suspended. None
        removes it.

        A store calls from tasks of its own, so the spans of a span hook have no parent there.
        """
        self._observer = observer

    @final
    def statistics(self) -> ChunkStorageStatistics:
        from ..base.storage_statistics import (
            ChunkErrorStatistics,
            ChunkStorageStatistics,
            ChunkVerbStatistics,
        )

        return ChunkStorageStatistics(
            self._creates,
            self._writes,
            self._reads,
            self._deletes,
            self._bytes_written,
            self._bytes_read,
            {
                verb: ChunkVerbStatistics(count.calls, count.failures, count.seconds)
                for verb, count in self._verbs.items()
            },
            {code: ChunkErrorStatistics(count) for code, count in self._errors.items()},
        )

    # --- the contract ----------------------------------------------------------------------------

    @final
    async def open(self) -> None:
        async with self._opening:
            if self._is_open:
                return

            with _Call(self, "open", ""):
                await self._open()
            self._is_open = True

    @final
    async def close(self) -> None:
        # Also if the caller was cancelled: its last chance to give back connections.
        with anyio.CancelScope(shield=True):
            async with self._opening:
                if not self._is_open:
                    return

                # Before the backend closes: a call that comes meanwhile is refused, and an error while
                # closing leaves it closed.
                self._is_open = False
                with _Call(self, "close", ""):
                    await self._close()

    @final
    async def exists(self, name: str) -> bool:
        with _Call(self, "exists", name):
            self._check(name)
            return await self._exists(name)

    @final
    async def info(self, name: str) -> ChunkInfo:
        with _Call(self, "info", name):
            self._check(name)
            return await self._info(name)

    @final
    async def create(self, name: str) -> None:
        with _Call(self, "create", name):
            self._check(name)
            self._check_append(name)
            await self._create(name)
        self._creates += 1

    @final
    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        with _Call(self, "create_with_content", name):
            self._check(name)
            check_buffers(name, data)
            # Counted below only if it succeeded: after an unknown outcome nobody knows whether the bytes are
            # there.
            size = await self._create_with_content(name, data)
        self._creates += 1
        self._bytes_written += size
        return size

    @final
    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        with _Call(self, "write", name):
            self._check(name, offset)
            self._check_append(name)
            check_buffers(name, data)
            end = await self._write(name, offset, data)
        self._writes += 1
        self._bytes_written += end - offset
        return end

    @final
    async def read(self, name: str, offset: int, size: int) -> bytes:
        with _Call(self, "read", name):
            self._check(name, offset, size)
            data = await self._read(name, offset, size)
        self._reads += 1
        self._bytes_read += len(data)
        return data

    @final
    async def delete(self, name: str) -> None:
        with _Call(self, "delete", name):
            self._check(name)
            await self._delete(name)
        self._deletes += 1

    @final
    async def delete_many(self, names: Sequence[str]) -> Sequence[str]:
        with _Call(self, "delete_many", names[0]):
            for name in names:
                self._check(name)
            if not self.capabilities.delete_many:
                raise _unsupported("delete_many", names[0])
            missing = await self._delete_many(names)
        self._deletes += len(names) - len(missing)
        return missing

    @final
    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        with _Call(self, "concat", name):
            self._check_concat(name, ranges)
            size = await self._concat(name, ranges)
        self._creates += 1
        self._bytes_written += size
        return size

    @final
    async def replace(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        with _Call(self, "replace", name):
            self._check_replace(name, ranges)
            size = await self._replace(name, ranges)
        self._bytes_written += size
        return size

    @final
    async def set_read_only(self, name: str, read_only: bool) -> None:
        with _Call(self, "set_read_only", name):
            self._check(name)
            await self._set_read_only(name, read_only)

    @final
    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        with _Call(self, "list", prefix):
            self._check_open()
            if after:
                check_chunk_name(after)
        # No chunk has such a name, so the backend is not asked: on a file system the prefix could name a path
        # outside of the chunks.
        if not can_begin_chunk_name(prefix):
            return

        async with aclosing(self._list(prefix, after)) as infos:
            while True:
                # Step by step: between two of them the caller may take any time, which is not the storage's.
                with _Step(self, "list", prefix):
                    info = await anext(infos, None)
                if info is None:
                    return

                yield info

    @final
    async def used_space(self) -> int:
        with _Call(self, "used_space", ""):
            self._check_open()
            return await self._used_space()

    @final
    async def sweep(self) -> None:
        with _Call(self, "sweep", ""):
            self._check_open()
            await self._sweep()

    # --- for backends to implement ---------------------------------------------------------------

    async def _open(self) -> None:
        """Called while closed. After an error nothing is open."""
        await anyio.lowlevel.checkpoint()

    async def _close(self) -> None:
        """Called while open. Whatever it raises, the storage is closed then."""
        await anyio.lowlevel.checkpoint()

    async def _exists(self, name: str) -> bool:
        try:
            await self._info(name)
        except ChunkNotFound:
            return False
        return True

    @abstractmethod
    async def _info(self, name: str) -> ChunkInfo: ...

    async def _create(self, name: str) -> None:
        """Create an empty chunk. Needed with the append capability."""
        raise _unsupported("create", name)

    @abstractmethod
    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> int: ...

    async def _write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """Append to a chunk. Needed with the append capability."""
        raise _unsupported("write", name)

    @abstractmethod
    async def _read(self, name: str, offset: int, size: int) -> bytes: ...

    @abstractmethod
    async def _delete(self, name: str) -> None: ...

    async def _delete_many(self, names: Sequence[str]) -> Sequence[str]:
        """Delete chunks, and return the missing ones. Needed with the capability."""
        raise _unsupported("delete_many", names[0])

    async def _concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        """Make a chunk of ranges of others. Needed with the concat capability."""
        raise _unsupported("concat", name)

    async def _replace(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        """Replace a chunk by ranges of others. Needed with the capability."""
        raise _unsupported("replace", name)

    @abstractmethod
    async def _set_read_only(self, name: str, read_only: bool) -> None: ...

    @abstractmethod
    def _list(self, prefix: str, after: str) -> AsyncGenerator[ChunkInfo, None]:
        """``prefix`` is the beginning of a valid name; ``after`` is a valid name, or empty."""

    @abstractmethod
    async def _used_space(self) -> int: ...

    async def _sweep(self) -> None:
        """Needed if dead processes leave something that ``open`` alone does not remove in time."""
        await anyio.lowlevel.checkpoint()

    def _mapped(self, error: Exception, verb: str, name: str) -> TierlogError:
        """The error for an exception that is no ``TierlogError``. A backend overrides it to be more
        specific."""
        # It may have been raised on the way back, when the change was made.
        if verb in MUTATIONS:
            return OutcomeUnknown(f"{verb} of chunk {name} may have happened: {error!r}")
        return Unavailable(f"{verb} {name!r} failed: {error!r}")

    # --- checks ----------------------------------------------------------------------------------

    def _check(self, name: str, *numbers: int) -> None:
        """Raise unless the storage is open, ``name`` is valid and no number is negative."""
        self._check_open()
        check_chunk_name(name)
        for number in numbers:
            if number < 0:
                raise InvalidArgument(
                    f"offsets, sizes and lengths must not be negative: {numbers} for chunk {name}"
                )

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError("long-term storage is not open: use it inside the body of its `async with`")

    def _check_append(self, name: str) -> None:
        if not self.capabilities.append:
            raise Unsupported(
                f"this chunk storage cannot append; create chunk {name} with its content instead"
            )

    def _check_ranges(self, name: str, ranges: Sequence[ChunkRange]) -> None:
        self._check(name)
        if not ranges:
            raise InvalidArgument(f"{name} needs at least one range to be made of")

        for part in ranges:
            self._check(part.name, part.offset, part.length)

    def _check_concat(self, name: str, ranges: Sequence[ChunkRange]) -> None:
        self._check_ranges(name, ranges)
        if not self.capabilities.concat:
            raise Unsupported(
                f"this chunk storage cannot concat; read the ranges and create chunk {name} with their "
                f"content"
            )

    def _check_replace(self, name: str, ranges: Sequence[ChunkRange]) -> None:
        self._check_ranges(name, ranges)
        if not self.capabilities.replace:
            raise Unsupported(f"this chunk storage cannot replace chunk {name}; create another one")

    # --- counts ----------------------------------------------------------------------------------

    def _failed(self, verb: str, name: str, error: Exception) -> TierlogError:
        """Count an error, and return the one to raise."""
        raised = error if isinstance(error, TierlogError) else self._mapped(error, verb, name)
        self._verbs[verb].failures += 1
        # An error outside of the contract gets its counter when it first occurs.
        self._errors[raised.code] = self._errors.get(raised.code, 0) + 1
        return raised


class ReadOnlyChunks(BaseChunkStorage):
    """For a storage that was opened for reading, in front of its backend: every change is refused. Its
    capabilities have neither append nor concat."""

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> NoReturn:
        self._refuse(name)

    async def _delete(self, name: str) -> NoReturn:
        self._refuse(name)

    async def _set_read_only(self, name: str, read_only: bool) -> NoReturn:
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise Unsupported(f"chunk {name} cannot be changed: this storage was opened for reading")


class _Step:
    """A part of a call: counts its seconds, counts and maps its error."""

    __slots__ = ("_name", "_started", "_storage", "_verb")

    def __init__(self, storage: BaseChunkStorage, verb: str, name: str) -> None:
        self._storage = storage
        self._verb = verb
        self._name = name

    def __enter__(self) -> None:
        self._started = anyio.current_time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._storage._verbs[self._verb].seconds += anyio.current_time() - self._started
        if isinstance(error, Exception):
            raised = self._storage._failed(self._verb, self._name, error)
            if raised is not error:
                raise raised from error


class _Call(_Step):
    """A whole call: counts it too, and calls the observer."""

    __slots__ = ("_watch",)

    def __enter__(self) -> None:
        super().__enter__()
        self._storage._verbs[self._verb].calls += 1
        observer = self._storage._observer
        self._watch = None
        # Not for lists: their generators may stay suspended, and a span of theirs would never end.
        if observer is not None and self._verb != "list":
            self._watch = observer(
                f"tierlog.chunk_storage.{self._verb}", {"chunk": self._name} if self._name else {}
            )
            self._watch.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            if self._watch is not None:
                self._watch.__exit__(kind, error, trace)


def _unsupported(verb: str, name: str) -> Unsupported:
    return Unsupported(
        f"this chunk storage's capabilities include {verb}, but it does not implement it; chunk {name} is "
        f"unchanged"
    )


def size_of(data: Sequence[Buffer]) -> int:
    """The bytes in all buffers."""
    return sum(map(len, data))


def bad_offset(name: str, length: int, given: int) -> BadChunkOffset:
    return BadChunkOffset(
        f"chunk {name} has {length} bytes, offset {given} was given", chunk=name, expected=length, given=given
    )
