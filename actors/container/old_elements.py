"""The elements of a container's journal that are no longer needed, and their deletion (rule J8).

An owner deletes elements below its head without proof: nobody who created higher numbers begins with these.
Cancellation and crash: what was not deleted is found by the next listing of the whole journal."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

import anyio

from ...journal.manifest.chain import element_name, read_element
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption, TierlogError
from ...storage_backends.base.parallel import in_parallel
from ..telemetry.logging import get_logger
from .claims import delete_claims, list_claims
from .confirmation import Confirmation
from .owner import Identity

_log = get_logger("container")

_BATCH_MAX = 32
"""The most elements that one call deletes or reads."""
_PARALLEL = 4
"""Deletions at the same time: one after the other, those of a batch would take most of a second in a
bucket."""
_SECONDS = 1.0
"""Seconds that an opening, an element or a listing waits for deletions."""
_PAUSE_SECONDS = 60.0
"""Seconds until the next attempt if the deletions took longer: a call that hangs keeps its slot."""


class OldElements:
    def __init__(
        self, chunks: ChunkStorage, container: int, identity: Identity, confirmation: Confirmation
    ) -> None:
        self._chunks = chunks
        self._container = container
        self._identity = identity
        self._confirmation = confirmation
        self._others: deque[int] = deque()
        """Elements of others that listings of the whole journal showed, by number, until they are deleted."""
        self._own: deque[int] = deque()
        """Elements that this owner, or an earlier one in this folder, made count."""
        self.spared: set[int] = set()
        """Elements that a backup which is being made still reads, by number (rule P1)."""
        self.has_claims = False
        """Whether there may be claims of earlier versions (rule J12)."""
        self._deleted = 0
        self._last_failed = False
        self._paused_until = -math.inf

    def listed(self, numbers: Sequence[int]) -> None:
        """The whole journal was listed."""
        self._others = deque(n for n in numbers if n not in self._own)

    def counted(self, n: int) -> None:
        """An element of this owner counts."""
        self._own.append(n)

    async def find_own(self) -> None:
        """Find those of the listed elements that were created from this folder, by earlier owners: otherwise
        each opening of an unconfirmed container would add one."""
        own = set(self._own)
        for n in list(islice(self._others, _BATCH_MAX)):
            # A damaged one may be anybody's.
            with suppress(ChunkNotFound, DataCorruption):
                owner = (await read_element(self._chunks, self._container, n)).element.owner
                if owner.log == self._identity.log and owner.folder == self._identity.folder.digest:
                    own.add(n)
        # Another listing may have replaced the others meanwhile.
        self._others = deque(n for n in self._others if n not in own)
        self._own = deque(sorted(own.union(self._own)))

    async def delete_below(self, end: int) -> bool:
        """Delete elements below ``end``, lowest first, and claims of earlier versions; if the container is
        unconfirmed, elements from this folder only. Takes a second at most: the rest is left to later calls.
        Returns whether an element was deleted. An error of the storage is logged, not raised."""
        if anyio.current_time() < self._paused_until:
            return False

        end = min((end, *self.spared))
        is_confirmed = self._confirmation.unconfirmed is None
        left, deleted_before = _BATCH_MAX, self._deleted
        try:
            with anyio.fail_after(_SECONDS):
                if is_confirmed and self.has_claims:
                    claims = await list_claims(self._chunks, self._container)
                    await delete_claims(self._chunks, self._container, claims)
                    self.has_claims = False
                for numbers in (self._others, self._own) if is_confirmed else (self._own,):
                    left -= await self._delete(numbers, end, left)
            self._last_failed = False
        except TimeoutError:
            self._paused_until = anyio.current_time() + _PAUSE_SECONDS
            self._failed("no answer yet")
        except TierlogError as error:
            self._failed(str(error))
        # Also if another one took too long, or failed: there is room for as many.
        return self._deleted > deleted_before

    def _failed(self, error: str) -> None:
        if not self._last_failed:  # once for all attempts of an outage (rule S7)
            _log.warning("elements_not_deleted", container=self._container, error=error)
        self._last_failed = True

    async def _delete(self, numbers: deque[int], end: int, most: int) -> int:
        """Delete the first ``most`` below ``end``, or as many as there are. Returns how many."""
        due: list[int] = []
        while len(due) < most and numbers and numbers[0] < end:
            due.append(numbers.popleft())
        remaining = set(due)

        async def delete(n: int) -> None:
            with suppress(ChunkNotFound):
                await self._chunks.delete(element_name(self._container, n))
            remaining.remove(n)
            self._deleted += 1

        calls = [partial(delete, n) for n in due]
        try:
            # One first: if deletions hang, it alone keeps a slot of the storage actor.
            await in_parallel(1, calls[:1])
            await in_parallel(_PARALLEL, calls[1:])
        finally:
            # Again next time, also if the caller was cancelled: the outcome is unknown.
            numbers.extendleft(sorted(remaining, reverse=True))
        return len(due)
