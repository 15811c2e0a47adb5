"""Whether a container is unconfirmed: its metadata may not know all chunks that somebody needs, so it deletes
none of those that it does not know (rule G4).

Cancellation and crash: the record is there or not; a commit of unknown outcome ends the ownership."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

import anyio

from ...journal.operations.begin_history import BeginHistory
from ...journal.operations.operation import Operation
from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import DataCorruption
from ...storage_backends.base.sorted_dict import SortedDict, with_prefix
from ...storage_backends.segments.metadata_store import ChunkMetadataStore
from ...storage_backends.segments.records.claim import CLAIM_PREFIX, ClaimRecord, claim_key, epoch_of_key
from ...storage_backends.segments.records.unconfirmed import UNCONFIRMED_KEY, Reason, UnconfirmedRecord
from .state import ContainerState

_LIMITS = {Reason.MOVED: 86_400.0}
"""Seconds after which a container confirms itself (rule G4)."""

JUMP = 1 << 20
"""Versions that are left to another history: what it may have used after its newest element."""
Metadata = Mapping[str, tuple[int, bytes]]
"""Records that are resident: version and value by key."""


def claim_records(metadata: SortedDict[str, tuple[int, bytes]]) -> dict[int, ClaimRecord]:
    """The records of claims of earlier versions, by epoch."""
    with _decoding(CLAIM_PREFIX):
        keys = with_prefix(metadata.runs_from(CLAIM_PREFIX), CLAIM_PREFIX)
        return {epoch_of_key(key): ClaimRecord.decode(metadata[key][1]) for key in keys}


def unconfirmed_record(metadata: Metadata) -> UnconfirmedRecord | None:
    entry = metadata.get(UNCONFIRMED_KEY)
    with _decoding(UNCONFIRMED_KEY):
        return None if entry is None else UnconfirmedRecord.decode(entry[1])


@contextmanager
def _decoding(key: str) -> Iterator[None]:
    try:
        yield
    except DecodeError as error:
        raise DataCorruption(f"metadata record does not decode: {error}", file=key) from error


class Confirmation:
    """The record that a container is unconfirmed."""

    def __init__(
        self, state: ContainerState, store: ChunkMetadataStore, log: Callable[[Operation], Awaitable[object]]
    ) -> None:
        """``log(op)`` returns once the operation is durable."""
        self._log = log
        self._state = state
        self._metadata = state.resident
        self._store = store
        self._confirmed = anyio.Event()
        self._changing = anyio.Lock()

    @property
    def unconfirmed(self) -> UnconfirmedRecord | None:
        return unconfirmed_record(self._metadata)

    @property
    def is_adopted(self) -> bool:
        """Whether an operator decided that this folder goes on, and has not confirmed it yet."""
        unconfirmed = self.unconfirmed
        return unconfirmed is not None and unconfirmed.reason is Reason.ADOPTED

    @property
    def oldest_epoch(self) -> int:
        """Chunks of owners before this epoch are no proof that the log is old: an operator confirmed them."""
        return min(claim_records(self._metadata), default=0)

    async def begin_history(self, highest: int = 0) -> None:
        """Another history of this container may have gone on, up to version ``highest`` as far as is known:
        use none of its versions again (rule J6). Returns once that is durable."""
        await self._log(BeginHistory(max(self._state.sequence, highest) + JUMP))

    async def mark(self, record: UnconfirmedRecord, highest: int = 0) -> None:
        """``begin_history``, and the container is unconfirmed; returns once that is durable."""
        await self.begin_history(highest)
        async with self._changing:
            if self.unconfirmed != record:
                version = self._version(UNCONFIRMED_KEY)
                await self._store.commit({UNCONFIRMED_KEY: version}, {UNCONFIRMED_KEY: record.encode()})

    async def confirm(self) -> None:
        """The container may delete what it does not know; returns once that is durable.

        In the same commit a record notes the epoch: chunks of earlier owners are not checked again."""
        writes: dict[str, bytes | None] = dict.fromkeys(map(claim_key, claim_records(self._metadata)))
        writes[claim_key(self._state.epoch)] = ClaimRecord(bytes(16)).encode()
        await self._end(writes)

    async def _end(
        self, writes: Mapping[str, bytes | None], expired: UnconfirmedRecord | None = None
    ) -> None:
        async with self._changing:  # operators and the end of 24 hours may come at the same time
            # Another reason may have taken the place of the one that has expired.
            if self._version(UNCONFIRMED_KEY) and expired in (None, self.unconfirmed):
                writes = {**writes, UNCONFIRMED_KEY: None}
                await self._store.commit({key: self._version(key) for key in writes}, writes)
        confirmed, self._confirmed = self._confirmed, anyio.Event()
        confirmed.set()

    async def wait_confirmed(self) -> None:
        """Return once the container is confirmed: by ``confirm``, or, if the folder was only moved, after 24
        hours of this ownership."""
        while (record := self.unconfirmed) is not None:
            with anyio.move_on_after(_LIMITS.get(record.reason, math.inf)) as limit:
                await self._confirmed.wait()
            if limit.cancelled_caught:
                await self._end({}, record)

    def _version(self, key: str) -> int:
        return self._metadata.get(key, (0, b""))[0]
