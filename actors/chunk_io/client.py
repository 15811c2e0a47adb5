"""The storage client: a ``ChunkStorage`` that calls the storage-backend actor.

A cancelled call leaves the actor sound: if it was still queued it is dropped, if it runs it goes on, and the
outcome of a mutation is unknown. Mutable buffers are copied, because a call may outlive its caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.lowlevel

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.chunk_storage import (
    Capabilities,
    ChunkInfo,
    ChunkRange,
    ChunkStorage,
    check_buffers,
    check_chunk_name,
)
from ...storage_backends.base.errors import ClosedError, OutcomeUnknown
from ..kernel.slices import in_slices, turn_after
from . import calls
from .actor import StorageActor
from .calls import ChunkCall, PendingCall, Verb

if TYPE_CHECKING:
    from ...storage_backends.base.storage_statistics import ChunkStorageStatistics

T = TypeVar("T")

_SLOWEST = 1 << 20
"""Bytes per second. A call may take so much longer for the data that it carries."""


def _immutable(buffer: Buffer) -> Buffer:
    """``buffer``, or a copy of it if its bytes could change."""
    if isinstance(buffer, bytes) or (isinstance(buffer, memoryview) and isinstance(buffer.obj, bytes)):
        return buffer
    return bytes(buffer)


def _checked(name: str, data: Sequence[Buffer]) -> tuple[Buffer, ...]:
    check_buffers(name, data)
    return tuple(map(_immutable, data))


class StorageClient(ChunkStorage):
    """A client of ``actor``. Cheap: make one for each user."""

    def __init__(self, actor: StorageActor) -> None:
        self._actor = actor
        self._closed = False

    def __repr__(self) -> str:
        return f"<StorageClient of {self._actor!r}>"

    @property
    def capabilities(self) -> Capabilities:
        return self._actor.capabilities

    async def open(self) -> None:
        """Wait until the actor serves. A closed client can be opened again. Raises ``ClosedError`` if the
        actor was stopped before this call, or ends before it serves."""
        await self._actor.wait_active()
        self._closed = False

    async def close(self) -> None:
        """Refuse further use of this client. The actor and its backend stay."""
        self._closed = True
        await anyio.lowlevel.checkpoint()

    def admit(self, name: str) -> None:
        """Check before naming and tracking a chunk (rule S7), without waiting. ``name`` is the chunk's, or
        its prefix. Raises ``Unavailable`` while the breaker is open, ``StorageFull`` above the quota."""
        self._actor.admit(name)

    def retry_in(self) -> float:
        return self._actor.retry_in()

    def notifying(self, notify: Callable[[], None]) -> AbstractContextManager[None]:
        return self._actor.notifying(notify)

    # --- the contract ---------------------------------------------------------------------------------------

    async def exists(self, name: str) -> bool:
        return await self._call(calls.EXISTS, name)

    async def info(self, name: str) -> ChunkInfo:
        return await self._call(calls.INFO, name)

    async def read(self, name: str, offset: int, size: int) -> bytes:
        return await self._call(calls.READ, name, offset, size)

    async def drop_copy(self, name: str) -> bool:
        return await self._call(calls.DROP_COPY, name)

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        """By pages, each of which is a call with a deadline of its own. Others run between slices of a
        page."""
        options = self._actor.options
        is_last = False
        while not is_last:
            # Half of the deadline is left for the page's retries, and for its way through the queue.
            arguments = (after, options.list_page, options.read_deadline / 2)
            page = await self._send(ChunkCall(calls.LIST, prefix, arguments))
            for infos in in_slices(page.chunks):
                for info in infos:
                    after = info.name
                    yield info
                await turn_after(infos)
            is_last = page.is_last

    async def used_space(self) -> int:
        return await self._send(ChunkCall(calls.USED_SPACE, calls.SYSTEM_PREFIX))

    async def create(self, name: str) -> None:
        await self._call(calls.CREATE, name)

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        return await self._call(calls.CREATE_WITH_CONTENT, name, _checked(name, data))

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        return await self._call(calls.WRITE, name, offset, _checked(name, data))

    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._call(calls.CONCAT, name, tuple(ranges))

    async def replace(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._call(calls.REPLACE, name, tuple(ranges))

    async def delete(self, name: str) -> None:
        await self._call(calls.DELETE, name)

    async def delete_many(self, names: Sequence[str]) -> Sequence[str]:
        for name in names:
            check_chunk_name(name)
        return await self._call(calls.DELETE_MANY, names[0], tuple(names))

    async def set_read_only(self, name: str, read_only: bool) -> None:
        await self._call(calls.SET_READ_ONLY, name, read_only)

    def statistics(self) -> ChunkStorageStatistics:
        return self._actor.statistics().backend

    # --- calls ----------------------------------------------------------------------------------------------

    async def _call(self, verb: Verb[T], name: str, *arguments: Any) -> T:
        self._check_open()
        check_chunk_name(name)
        return await self._send(ChunkCall(verb, name, arguments))

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this storage client was closed")

    async def _send(self, call: ChunkCall[T]) -> T:
        self._check_open()
        mailbox = self._actor.accept(call).mailbox
        # The deadline includes the wait for room in the mailbox: for the caller it is one call.
        pending = PendingCall(call, mailbox.events)
        options = self._actor.options
        deadline = options.write_deadline if call.verb.mutates else options.read_deadline
        deadline += call.size / _SLOWEST
        try:
            with anyio.move_on_after(deadline):
                await mailbox.put(pending, call.size, call.lane)
                return await pending.wait()
        except anyio.get_cancelled_exc_class():
            # If it is still queued, it need not be begun.
            pending.fail(OutcomeUnknown(f"{call.name}: its caller was cancelled"))
            raise

        # An answer that came in this very step counts (A6): `expire` leaves it as it is.
        self._actor.expire(pending)
        return await pending.wait()
