"""Trying again: the only retries of the whole store (rules A12 and S3).

Owns: the table of what follows which error (``next_step``, sync and pure), reading back, and the loop around
them. Does not own: deadlines and limits (the actor's).

Trouble is ``Unavailable`` (nothing happened) or ``OutcomeUnknown`` (something may have): all other errors are
answers and surface at once. Once one attempt's outcome was unknown, the operation's is, until the storage
itself tells: giving up then says ``OutcomeUnknown``, whatever came last.

Cancellation passes through; a mutation's outcome is unknown then.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn, TypeVar

import anyio
import attrs

from ...storage_backends.base.checksum import crc32c, crc32c_of
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    OutcomeUnknown,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.statistics import counter
from ..kernel.backoff import Backoff
from .messages import CreateWithContent, Operation, Retry

T = TypeVar("T")

READ_BACK_BLOCK = 1 << 20


class Next(enum.Enum):
    SURFACE = "surface"
    AGAIN = "again"
    READ_BACK = "read back, then decide"
    DONE = "an earlier attempt did it"


def next_step(retry: Retry, error: TierlogError, unsure: bool, *, reads_are_durable: bool) -> Next:
    """What follows ``error``. ``unsure``: the outcome of an earlier attempt was unknown. Where reads are not
    durable, what is read back proves nothing, so an unknown outcome of a creation stays unknown: its caller
    takes another name."""
    if isinstance(error, Unavailable):
        return Next.SURFACE if retry is Retry.NEVER else Next.AGAIN

    if isinstance(error, OutcomeUnknown):
        created = Next.READ_BACK if reads_are_durable else Next.SURFACE
        return {Retry.NEVER: Next.SURFACE, Retry.CREATE: created}.get(retry, Next.AGAIN)

    if unsure and retry is Retry.CREATE and isinstance(error, ChunkExists):
        return Next.READ_BACK

    if unsure and retry is Retry.DELETE and isinstance(error, ChunkNotFound):
        return Next.DONE
    return Next.SURFACE


@attrs.frozen
class AttemptsStatistics:
    retries: int = attrs.field(metadata=counter("Calls to long-term storage that were tried again."))
    read_backs: int = attrs.field(metadata=counter("Creations of unknown outcome that were looked at."))


class Attempts:
    """Carries operations out, within ``limit`` attempts each."""

    __slots__ = ("_backoff", "_chunks", "_limit", "_observe", "_random", "_read_backs", "_retries")

    def __init__(
        self,
        chunks: ChunkStorage,
        limit: int,
        backoff: Backoff,
        random: Random,
        observe: Callable[[Operation[Any], BaseException | None], None],
    ) -> None:
        """``observe`` is told how each single attempt ended: its error, or None."""
        self._chunks = chunks
        self._limit = limit
        self._backoff = backoff
        self._random = random
        self._observe = observe
        self._retries = 0
        self._read_backs = 0

    def __repr__(self) -> str:
        return f"<Attempts {self._retries} retries, {self._read_backs} read back>"

    async def carry_out(self, operation: Operation[T], is_wanted: Callable[[], bool]) -> T:
        """The operation's result. It is not tried again once ``is_wanted()`` is False."""
        unsure = False
        for attempt in range(self._limit):
            try:
                return await self._once(operation)
            except TierlogError as error:
                step = next_step(
                    operation.retry,
                    error,
                    unsure,
                    reads_are_durable=self._chunks.capabilities.reads_are_durable,
                )
                unsure = unsure or isinstance(error, OutcomeUnknown)
                if step is Next.DONE or (step is Next.READ_BACK and await self._is_ours(operation, error)):
                    return operation.known_result()

                if step is Next.SURFACE or attempt + 1 == self._limit or not is_wanted():
                    self._give_up(operation, error, unsure)

            self._retries += 1
            await anyio.sleep(self._backoff.delay(attempt, self._random))
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, operation: Operation[T]) -> T:
        try:
            result = await operation.perform(self._chunks)
        except Exception as error:
            self._observe(operation, error)
            raise

        self._observe(operation, None)
        return result

    @staticmethod
    def _give_up(operation: Operation[Any], error: TierlogError, unsure: bool) -> NoReturn:
        if operation.mutates and unsure and not isinstance(error, OutcomeUnknown):
            raise OutcomeUnknown(
                f"{operation.name}: the outcome of an attempt is unknown, and the last one ended with: "
                f"{error}"
            ) from error
        raise error

    async def _is_ours(self, operation: Operation[Any], cause: TierlogError) -> bool:
        """Whether the chunk is there with exactly our bytes; False if it is absent or cannot be read. Raises
        ``ChunkExists`` if it holds other bytes."""
        assert isinstance(operation, CreateWithContent)
        self._read_backs += 1
        try:
            found = await self._fingerprint(operation.name)
        except (ChunkNotFound, Unavailable, OutcomeUnknown):
            # To create it again is safe: it is conditional, and finds the chunk if it is there after all.
            return False

        if found == (operation.size, crc32c_of(operation.data)):
            return True
        raise ChunkExists(f"{operation.name} exists with other content", chunk=operation.name) from cause

    async def _fingerprint(self, name: str) -> tuple[int, int]:
        """Length and CRC32C of a chunk, read in blocks."""
        offset = checksum = 0
        while block := await self._chunks.read(name, offset, READ_BACK_BLOCK):
            offset += len(block)
            checksum = crc32c(block, checksum)
        return offset, checksum

    def statistics(self) -> AttemptsStatistics:
        return AttemptsStatistics(retries=self._retries, read_backs=self._read_backs)
