"""The storage client: a ``ChunkStorage`` that asks the storage-backend actor, so that everybody else just
sees the contract.

Owns: turning verbs into messages, the deadline of each ask, and the copy of mutable buffers. Does not own:
anything about the backend.

Cancellation: a cancelled ask leaves the actor sound. One that was still queued is dropped there; one that
runs goes on, and a mutation's outcome is unknown. Hole 39: mutable buffers are copied here, because an
operation may outlive its caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.chunk_storage import (
    Capabilities,
    ChunkInfo,
    ChunkRange,
    ChunkStorage,
    ChunkStorageStatistics,
    check_buffers,
    check_chunk_name,
)
from ...storage_backends.base.errors import ClosedError, OutcomeUnknown
from ..kernel.lifecycle import Unreachable
from . import messages as op
from .actor import StorageActor, StorageActorStatistics

T = TypeVar("T")


def _settled(buffer: Buffer) -> Buffer:
    """``buffer``, or a copy of it if its bytes could change."""
    if isinstance(buffer, bytes) or (isinstance(buffer, memoryview) and isinstance(buffer.obj, bytes)):
        return buffer
    return bytes(buffer)


def _settle(name: str, data: Sequence[Buffer]) -> tuple[Buffer, ...]:
    check_buffers(name, data)
    return tuple(map(_settled, data))


class StorageClient(ChunkStorage):
    """See the module's head. Light; make as many as there are users."""

    def __init__(self, actor: StorageActor) -> None:
        self._actor = actor
        self._closed = False

    def __repr__(self) -> str:
        return f"<StorageClient of {self._actor!r}>"

    @property
    def capabilities(self) -> Capabilities:
        return self._actor.capabilities

    async def open(self) -> None:
        """Wait until the actor serves; a closed client can be opened again. Raises ``ClosedError`` if the
        actor has ended."""
        try:
            await self._actor.wait_active()
        except Unreachable as error:
            raise ClosedError(f"the storage actor has ended: {error}") from error

        self._closed = False

    async def close(self) -> None:
        """Refuse further use of this client. The actor and its backend stay."""
        self._closed = True
        await anyio.lowlevel.checkpoint()

    def admit(self, name: str) -> None:
        """Call this before naming and tracking a chunk (rule S7). Sync and cheap: raises ``Unavailable``
        while long-term storage is in trouble, ``StorageFull`` above the quota. ``name``: the chunk's name or
        its prefix."""
        self._actor.admit(name)

    # --- the contract ---------------------------------------------------------------------------------------

    async def exists(self, name: str) -> bool:
        return await self._ask(op.Exists(name))

    async def info(self, name: str) -> ChunkInfo:
        return await self._ask(op.Info(name))

    async def read(self, name: str, offset: int, size: int) -> bytes:
        return await self._ask(op.Read(name, offset, size))

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        """By pages, of which each is an ask with a deadline of its own."""
        options = self._actor.options
        is_last = False
        while not is_last:
            page = await self._ask(
                op.ListChunks(prefix, after, options.list_page, options.read_deadline / 2), check_name=False
            )
            for info in page.chunks:
                after = info.name
                yield info
            is_last = page.is_last

    async def used_space(self) -> int:
        return await self._ask(op.UsedSpace(), check_name=False)

    async def create(self, name: str) -> None:
        await self._ask(op.Create(name))

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        return await self._ask(op.CreateWithContent(name, _settle(name, data)))

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        return await self._ask(op.Write(name, offset, _settle(name, data)))

    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._ask(op.Concat(name, tuple(ranges)))

    async def delete(self, name: str) -> None:
        await self._ask(op.Delete(name))

    async def truncate(self, name: str, length: int) -> None:
        await self._ask(op.Truncate(name, length))

    async def set_read_only(self, name: str, read_only: bool) -> None:
        await self._ask(op.SetReadOnly(name, read_only))

    def statistics(self) -> ChunkStorageStatistics:
        return self._actor.statistics().backend

    def actor_statistics(self) -> StorageActorStatistics:
        return self._actor.statistics()

    # --- asking ---------------------------------------------------------------------------------------------

    async def _ask(self, operation: op.Operation[T], *, check_name: bool = True) -> T:
        if self._closed:
            raise ClosedError("this storage client was closed")

        if check_name:
            check_chunk_name(operation.name)
        mailbox = self._actor.accept(operation).mailbox
        ticket: op.Ticket[T] = op.Ticket(mailbox.events)
        request = op.Request(operation, ticket)
        options = self._actor.options
        deadline = options.write_deadline if operation.mutates else options.read_deadline
        try:
            with anyio.move_on_after(deadline):
                await mailbox.put(request, operation.size, operation.lane)
                return await ticket.wait()
        except anyio.get_cancelled_exc_class():
            # Nobody waits any more: if it is still queued, it need not be begun.
            ticket.fail(OutcomeUnknown(f"{operation.name}: its asker was cancelled"))
            raise

        self._actor.expire(request)
        return await ticket.wait()
