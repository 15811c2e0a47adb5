"""The only retries of the whole store (rules A12 and S3): what follows which error, and the loop around it.

``Unavailable`` means that nothing happened, ``OutcomeUnknown`` that something may have; all other errors are
answers and are raised at once. Once the outcome of one attempt was unknown, so is the call's until the
storage itself shows it: giving up then raises ``OutcomeUnknown``, whatever error came last. Cancellation
passes; the outcome of a mutation is then unknown.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import anyio

from ...storage_backends.base.checksum import crc32c, crc32c_of
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    OutcomeUnknown,
    TierlogError,
    Unavailable,
)
from ..kernel.backoff import Backoff
from .calls import ChunkCall, Retry

if TYPE_CHECKING:
    from .statistics import AttemptsStatistics

T = TypeVar("T")

READ_BACK_BLOCK = 1 << 20


class Next(enum.Enum):
    RAISE = "raise"
    REPEAT = "repeat"
    READ_BACK = "read back, then decide"
    DONE = "an earlier attempt did it"


def next_step(retry: Retry, error: TierlogError, unsure: bool, *, reads_are_durable: bool) -> Next:
    """What follows ``error``. ``unsure``: the outcome of an earlier attempt was unknown.

    Where reads are not durable, reading back proves nothing: the outcome of a creation stays unknown, and its
    caller takes another name.
    """
    # Nothing happened, by its contract. What is never repeated here is tried again by a later flush, behind
    # the breaker (S7).
    if isinstance(error, Unavailable):
        return Next.RAISE if retry is Retry.NEVER else Next.REPEAT

    if isinstance(error, OutcomeUnknown):
        created = Next.READ_BACK if reads_are_durable else Next.RAISE
        return {Retry.NEVER: Next.RAISE, Retry.CREATE: created}.get(retry, Next.REPEAT)

    if unsure and retry is Retry.CREATE and isinstance(error, ChunkExists):
        return Next.READ_BACK

    # Names are never used twice (S2), so nobody else's delete is meant.
    if unsure and retry is Retry.DELETE and isinstance(error, ChunkNotFound):
        return Next.DONE
    return Next.RAISE


class Attempts:
    """Performs calls, with at most ``limit`` attempts each."""

    __slots__ = ("_backoff", "_chunks", "_limit", "_observe", "_random", "_read_backs", "_retries")

    def __init__(
        self,
        chunks: ChunkStorage,
        limit: int,
        backoff: Backoff,
        random: Random,
        observe: Callable[[ChunkCall[Any], BaseException | None], None],
    ) -> None:
        """``observe`` is called with the error of each single attempt, or None."""
        self._chunks = chunks
        self._limit = limit
        self._backoff = backoff
        self._random = random
        self._observe = observe
        self._retries = 0
        self._read_backs = 0

    def __repr__(self) -> str:
        return f"<Attempts {self._retries} retries, {self._read_backs} read back>"

    async def perform(self, call: ChunkCall[T], is_wanted: Callable[[], bool]) -> T:
        """Return the call's result. It is not repeated once ``is_wanted()`` is False."""
        unsure = False
        for attempt in range(self._limit):
            try:
                return await self._once(call)
            except TierlogError as error:
                step = next_step(
                    call.verb.retry,
                    error,
                    unsure,
                    reads_are_durable=self._chunks.capabilities.reads_are_durable,
                )
                # After the decision, which is about the attempts before this one.
                unsure = unsure or isinstance(error, OutcomeUnknown)
                if step is Next.DONE or (step is Next.READ_BACK and await self._is_ours(call, error)):
                    return cast(T, None if call.verb.retry is Retry.DELETE else call.size)

                if step is Next.RAISE or attempt + 1 == self._limit or not is_wanted():
                    self._give_up(call, error, unsure)

            self._retries += 1
            await anyio.sleep(self._backoff.delay(attempt, self._random))
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, call: ChunkCall[T]) -> T:
        try:
            result = await call.perform(self._chunks)
        except Exception as error:
            self._observe(call, error)
            raise

        self._observe(call, None)
        return result

    @staticmethod
    def _give_up(call: ChunkCall[Any], error: TierlogError, unsure: bool) -> NoReturn:
        if call.verb.mutates and unsure and not isinstance(error, OutcomeUnknown):
            raise OutcomeUnknown(
                f"{call.name}: the outcome of an attempt is unknown, and the last one ended with: {error}"
            ) from error
        raise error

    async def _is_ours(self, call: ChunkCall[Any], cause: TierlogError) -> bool:
        """Whether the chunk exists with exactly our bytes; False if it is absent or cannot be read. Raises
        ``ChunkExists`` if it holds other bytes."""
        self._read_backs += 1
        try:
            # In blocks, and compared by length and CRC: a second copy of the chunk in memory is not needed
            # for it.
            found = await self._fingerprint(call.name)
        except (ChunkNotFound, Unavailable, OutcomeUnknown):
            # Creating it again is safe: it is conditional, and finds the chunk if it exists after all.
            return False

        if found == (call.size, crc32c_of(call.arguments[0])):
            return True
        raise ChunkExists(f"{call.name} exists with other content", chunk=call.name) from cause

    async def _fingerprint(self, name: str) -> tuple[int, int]:
        """Length and CRC32C of a chunk, read in blocks."""
        offset = checksum = 0
        while block := await self._chunks.read(name, offset, READ_BACK_BLOCK):
            offset += len(block)
            checksum = crc32c(block, checksum)
        return offset, checksum

    def statistics(self) -> AttemptsStatistics:
        from .statistics import AttemptsStatistics

        return AttemptsStatistics(retries=self._retries, read_backs=self._read_backs)
