"""Calls of the verbs of ``ChunkStorage`` as messages: one message, and one table of what differs between
verbs.

Rule S3: ``retry`` is ``NEVER`` for every verb whose repetition could change anything twice.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel
from msgspec import Struct

from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkStorage
from ...storage_backends.base.errors import Unavailable
from ..kernel.event_source import EventSource
from ..kernel.mailbox import Lane
from ..kernel.reply import Reply

T = TypeVar("T")

SYSTEM_PREFIX = "_system/"
"""Chunks of the store itself. They make space and keep the store recoverable, so no quota stops them (rule
C6)."""


class PoolKind(enum.Enum):
    """Which limit and which queue a call falls under."""

    READ = "read"
    WRITE = "write"


class Retry(enum.Enum):
    """What may follow ``Unavailable`` or ``OutcomeUnknown``."""

    NEVER = "never"
    """The error is raised at once."""
    REPEAT = "repeat"
    """The call changes nothing: repeat it."""
    DELETE = "delete"
    """Repeat it. Not found after an unknown outcome means success: names are never used twice."""
    CREATE = "create"
    """Conditional: repeat it. After an unknown outcome read the chunk back first."""


class Verb(Struct, Generic[T], frozen=True, eq=False, kw_only=True):
    """What the actor has to know about a verb; ``T`` is its result."""

    name: str
    """The name of the method of ``ChunkStorage``."""
    pool: PoolKind = PoolKind.READ
    lane: Lane = Lane.NORMAL
    """The mailbox's lane for calls about users' chunks."""
    retry: Retry = Retry.REPEAT
    grows: bool = False
    """It takes space: the quota and the breaker guard these."""
    carries: int | None = None
    """Which argument is the data, if any."""
    result_bytes: Callable[[T], int] | None = None
    """The user bytes that a call moved, by its result; without it, the bytes that it carries."""
    act: Callable[..., Awaitable[T]] | None = None
    """How it is performed, where it is not simply the method: takes the storage, the name and the
    arguments."""

    @property
    def mutates(self) -> bool:
        return self.pool is PoolKind.WRITE


class ListedPage(Struct, frozen=True, eq=False):
    chunks: Sequence[ChunkInfo]
    is_last: bool


_LIST_STEP = 128
"""Names of a page that are listed before others run; each costs about 10 microseconds."""


async def _list_page(chunks: ChunkStorage, prefix: str, after: str, limit: int, seconds: float) -> ListedPage:
    """The next ``limit`` names behind ``after``. A page is one answer, repeated as a whole or not at all. It
    ends after ``seconds`` with what it has, so that a slow list progresses and fails only if no name
    comes."""
    ends = anyio.current_time() + seconds
    page = []
    # A generator that is left half-run would be ended by the event loop at some later time.
    async with aclosing(chunks.list(prefix, after)) as infos:
        async for info in infos:
            # A13: names ascend, or the next page might begin where this one did, without end.
            if info.name <= after:
                raise Unavailable(
                    f"long-term storage lists {info.name} behind {after}: its lists are not in order, or "
                    f"repeat themselves; use a storage whose lists are in the order of names"
                )
            after = info.name
            page.append(info)
            # At least one name, however slow: the next page begins behind it, so a long list comes to its
            # end.
            if len(page) >= limit or anyio.current_time() >= ends:
                return ListedPage(page, is_last=False)

            if len(page) % _LIST_STEP == 0:
                await anyio.lowlevel.checkpoint()

    return ListedPage(page, is_last=True)


async def _used_space(chunks: ChunkStorage, _: str) -> int:
    return await chunks.used_space()


async def _delete_many(chunks: ChunkStorage, _: str, names: Sequence[str]) -> Sequence[str]:
    return await chunks.delete_many(names)


EXISTS: Verb[bool] = Verb(name="exists")
INFO: Verb[ChunkInfo] = Verb(name="info")
READ: Verb[bytes] = Verb(name="read", result_bytes=len)
DROP_COPY: Verb[bool] = Verb(name="drop_copy")
LIST: Verb[ListedPage] = Verb(name="list", act=_list_page)
USED_SPACE: Verb[int] = Verb(name="used_space", act=_used_space)
# Not read back like CREATE_WITH_CONTENT: an empty chunk proves nothing about who made it.
CREATE: Verb[None] = Verb(name="create", pool=PoolKind.WRITE, retry=Retry.NEVER, grows=True)
CREATE_WITH_CONTENT: Verb[int] = Verb(
    name="create_with_content", pool=PoolKind.WRITE, retry=Retry.CREATE, grows=True, carries=0
)
# S3: an append of unknown outcome may have left a prefix. The caller begins a new chunk in place of
# repeating.
WRITE: Verb[int] = Verb(name="write", pool=PoolKind.WRITE, retry=Retry.NEVER, grows=True, carries=1)
CONCAT: Verb[int] = Verb(name="concat", pool=PoolKind.WRITE, retry=Retry.NEVER, grows=True, result_bytes=int)
REPLACE: Verb[int] = Verb(
    name="replace", pool=PoolKind.WRITE, retry=Retry.NEVER, grows=True, result_bytes=int
)
# Deletes make space, so they go by the internal lane, whatever the name.
DELETE: Verb[None] = Verb(name="delete", pool=PoolKind.WRITE, retry=Retry.DELETE, lane=Lane.INTERNAL)
# Not repeated: its caller deletes them one by one then.
DELETE_MANY: Verb[Sequence[str]] = Verb(
    name="delete_many", pool=PoolKind.WRITE, retry=Retry.NEVER, lane=Lane.INTERNAL, act=_delete_many
)
SET_READ_ONLY: Verb[None] = Verb(name="set_read_only", pool=PoolKind.WRITE, retry=Retry.NEVER)

VERBS: Sequence[Verb[Any]] = (
    EXISTS,
    INFO,
    READ,
    DROP_COPY,
    LIST,
    USED_SPACE,
    CREATE,
    CREATE_WITH_CONTENT,
    WRITE,
    CONCAT,
    REPLACE,
    DELETE,
    DELETE_MANY,
    SET_READ_ONLY,
)


class ChunkCall(Struct, Generic[T], frozen=True, eq=False):
    """One call. ``name`` is the chunk's, or the prefix of a list."""

    verb: Verb[T]
    name: str
    arguments: tuple[Any, ...] = ()

    @property
    def size(self) -> int:
        """Payload bytes that the call carries."""
        return 0 if self.verb.carries is None else sum(map(len, self.arguments[self.verb.carries]))

    def moved(self, result: T) -> int:
        """User bytes that were read or written."""
        measure = self.verb.result_bytes
        return self.size if measure is None else measure(result)

    @property
    def lane(self) -> Lane:
        return Lane.INTERNAL if self.name.startswith(SYSTEM_PREFIX) else self.verb.lane

    async def perform(self, chunks: ChunkStorage) -> T:
        act = self.verb.act
        if act is not None:
            return await act(chunks, self.name, *self.arguments)
        result: T = await getattr(chunks, self.verb.name)(self.name, *self.arguments)
        return result


class PendingCall(Reply[T]):
    """A call in the actor's mailbox or running, and the slot for its answer."""

    __slots__ = ("call", "is_late", "is_started")

    def __init__(self, call: ChunkCall[T], events: EventSource | None = None) -> None:
        super().__init__(events)
        self.call = call
        self.is_started = False
        """Before that, nothing can have happened."""
        self.is_late = False
        """Its deadline passed while it was running."""
