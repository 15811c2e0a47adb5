"""The messages of the storage-backend actor: one frozen class for each verb of ``ChunkStorage``.

Owns: what each verb is (a read or a write, repeatable or not, growing or not) and how it is performed.
Does not own: when it is performed, nor what follows an error (``attempts.py`` is that table).

Rules upheld: S3: ``retry`` says ``NEVER`` for every verb whose repetition could change anything
twice.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Generic, TypeVar

import anyio
import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkRange, ChunkStorage
from ..kernel.mailbox import Lane
from ..kernel.one_shot import EventSource
from ..kernel.reply import Reply

T = TypeVar("T")

SYSTEM_PREFIX = "_system/"
"""Chunks of the store itself: what they hold makes space and keeps the store recoverable, so no quota stops
them (rule C6)."""


class PoolKind(enum.Enum):
    """Which limit and which queue an operation falls under."""

    READ = "read"
    WRITE = "write"


class Retry(enum.Enum):
    """How an operation may be repeated after trouble."""

    NEVER = "never"
    """Trouble surfaces, once."""
    REPEAT = "repeat"
    """It changes nothing: repeat it."""
    DELETE = "delete"
    """Repeat it; missing after an unknown outcome means that it was done, for names are never used twice."""
    CREATE = "create"
    """Conditional: repeat it; after an unknown outcome read back first."""


class Operation(ABC, Generic[T]):
    """The base of all messages. ``name`` is the chunk's."""

    __slots__ = ()

    pool: ClassVar[PoolKind] = PoolKind.READ
    retry: ClassVar[Retry] = Retry.REPEAT
    grows: ClassVar[bool] = False
    """It takes more space: the quota and the breaker are about these."""

    name: str

    @property
    def mutates(self) -> bool:
        return self.pool is PoolKind.WRITE

    @property
    def size(self) -> int:
        """Payload bytes that the message carries."""
        return 0

    def moved(self, result: T) -> int:
        """User bytes that were read or written, given the result."""
        return self.size

    @property
    def lane(self) -> Lane:
        return Lane.INTERNAL if self.name.startswith(SYSTEM_PREFIX) else Lane.NORMAL

    @abstractmethod
    async def perform(self, chunks: ChunkStorage) -> T: ...

    def known_result(self) -> T:
        """What to answer when an earlier attempt of unknown outcome turns out to have worked."""
        raise AssertionError(f"{type(self).__name__} is never found done")


@attrs.frozen
class Exists(Operation[bool]):
    name: str

    async def perform(self, chunks: ChunkStorage) -> bool:
        return await chunks.exists(self.name)


@attrs.frozen
class Info(Operation[ChunkInfo]):
    name: str

    async def perform(self, chunks: ChunkStorage) -> ChunkInfo:
        return await chunks.info(self.name)


@attrs.frozen
class Read(Operation[bytes]):
    name: str
    offset: int
    length: int

    async def perform(self, chunks: ChunkStorage) -> bytes:
        return await chunks.read(self.name, self.offset, self.length)

    def moved(self, result: bytes) -> int:
        return len(result)


@attrs.frozen
class ListedPage:
    chunks: Sequence[ChunkInfo]
    is_last: bool


@attrs.frozen
class ListChunks(Operation[ListedPage]):
    """A page of a list. ``name`` is the prefix. A page is one answer, so that it is repeated as a whole or
    not at all."""

    name: str
    after: str = ""
    """The last name of the page before."""
    limit: int = 10_000
    seconds: float = math.inf
    """A page that took as long ends with what it has: so a slow list gets on, and fails only where no name
    comes."""

    async def perform(self, chunks: ChunkStorage) -> ListedPage:
        ends = anyio.current_time() + self.seconds
        page = []
        # A generator that is left half-run would be ended by the event loop at some later time.
        async with aclosing(chunks.list(self.name, self.after)) as infos:
            async for info in infos:
                page.append(info)
                if len(page) >= self.limit or anyio.current_time() >= ends:
                    return ListedPage(page, is_last=False)

        return ListedPage(page, is_last=True)


@attrs.frozen
class UsedSpace(Operation[int]):
    name: str = SYSTEM_PREFIX

    async def perform(self, chunks: ChunkStorage) -> int:
        return await chunks.used_space()


class _Mutation(Operation[T]):
    __slots__ = ()
    pool = PoolKind.WRITE
    retry = Retry.NEVER


class _Growth(_Mutation[T]):
    __slots__ = ()
    grows = True


def _size_of(data: Sequence[Buffer]) -> int:
    return sum(map(len, data))


@attrs.frozen
class Create(_Growth[None]):
    name: str

    async def perform(self, chunks: ChunkStorage) -> None:
        await chunks.create(self.name)


@attrs.frozen
class CreateWithContent(_Growth[int]):
    retry = Retry.CREATE

    name: str
    data: Sequence[Buffer]

    @property
    def size(self) -> int:
        return _size_of(self.data)

    async def perform(self, chunks: ChunkStorage) -> int:
        return await chunks.create_with_content(self.name, self.data)

    def known_result(self) -> int:
        return self.size


@attrs.frozen
class Write(_Growth[int]):
    name: str
    offset: int
    data: Sequence[Buffer]

    @property
    def size(self) -> int:
        return _size_of(self.data)

    async def perform(self, chunks: ChunkStorage) -> int:
        return await chunks.write(self.name, self.offset, self.data)


@attrs.frozen
class Concat(_Growth[int]):
    name: str
    ranges: Sequence[ChunkRange]

    async def perform(self, chunks: ChunkStorage) -> int:
        return await chunks.concat(self.name, self.ranges)

    def moved(self, result: int) -> int:
        return result


@attrs.frozen
class Delete(_Mutation[None]):
    """It makes space, so it goes by the internal lane whatever the name."""

    retry = Retry.DELETE

    name: str

    @property
    def lane(self) -> Lane:
        return Lane.INTERNAL

    async def perform(self, chunks: ChunkStorage) -> None:
        await chunks.delete(self.name)

    def known_result(self) -> None:
        return None


@attrs.frozen
class Truncate(_Mutation[None]):
    name: str
    length: int

    async def perform(self, chunks: ChunkStorage) -> None:
        await chunks.truncate(self.name, self.length)


@attrs.frozen
class SetReadOnly(_Mutation[None]):
    name: str
    read_only: bool

    async def perform(self, chunks: ChunkStorage) -> None:
        await chunks.set_read_only(self.name, self.read_only)


class Ticket(Reply[T]):
    """An answer slot that knows how far the operation is."""

    __slots__ = ("late", "started")

    def __init__(self, events: EventSource | None = None) -> None:
        super().__init__(events)
        self.started = False
        """Before that, nothing can have happened."""
        self.late = False
        """Its deadline passed while it was running."""


@attrs.frozen(eq=False)
class Request:
    """What lies in the actor's mailbox."""

    operation: Operation[Any]
    ticket: Ticket[Any]
