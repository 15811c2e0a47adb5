"""The container as the storage writer and the collector see it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio.lowlevel

from ...journal.manifest.chain import runs_prefix
from ...journal.operations.barrier import Barrier
from ...journal.operations.forget_segment import ForgetSegment
from ...journal.operations.operation import Operation
from ...storage_backends.base.chunk_storage import ChunkInfo
from ...storage_backends.base.errors import DataCorruption
from ...storage_backends.segments.records import ReleasedRecord, chunk_key, released_key
from ...storage_backends.segments.records.chunk import CHUNK_PREFIX
from ...storage_backends.segments.records.claim import ClaimRecord
from ...storage_backends.segments.records.released import RELEASED_PREFIX
from ...storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord
from ...storage_backends.segments.transaction import decode_record
from ...storage_backends.sorted_runs.rows import Row
from ..flush.aggregation import FlushableSegment
from ..kernel.slices import in_slices
from ..telemetry.logging import get_logger
from .confirmation import claim_records
from .cycle_cut import CycleCut
from .manifest_state import ManifestState
from .metadata_store import LoggedMetadataStore
from .pins import Pins
from .state import ContainerState
from .truncated_chunks import TruncatedChunks

if TYPE_CHECKING:
    from .container import Container

_log = get_logger("gc")


class ReferencedNames:
    """The objects that the container's records, elements and pins refer to."""

    def __init__(self, state: ContainerState, store: LoggedMetadataStore, pins: Pins) -> None:
        self._state = state
        self._store = store
        self._pins = pins
        self._runs = runs_prefix(state.container)

    async def among(self, names: Sequence[str]) -> set[str]:
        """Which of ``names`` are referred to. Raises ``Unavailable`` if that cannot be read."""
        runs = {name for name in names if name.startswith(self._runs)}
        chunks = [name for name in names if name not in runs]
        # P4: pins first. A pin that is made later has nothing of what no row names now.
        pinned = await self._pins.among(chunks, runs)
        _, found = await self._store.look_up(map(chunk_key, chunks))
        named = self._state.manifest.runs_among(runs)
        return {key.removeprefix(CHUNK_PREFIX) for key in found}.union(pinned, named)


class PinnedNames:
    """The objects that pins keep: once one of them ends, the collector lists what there is."""

    def __init__(self, container: Container, pins: Pins) -> None:
        self._pins = pins
        self._runs = runs_prefix(container.index)

    async def among(self, names: Sequence[str]) -> set[str]:
        """Raises ``Unavailable``, ``DataCorruption`` if that cannot be read."""
        runs = {name for name in names if name.startswith(self._runs)}
        return await self._pins.kept_among([name for name in names if name not in runs], runs)


class UnpublishedNames:
    """The chunks that long-term storage alone may still need, because no element that counts has the removal
    of their records (rule G6)."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = container.state
        self._truncated = TruncatedChunks(container)

    async def among(self, names: Sequence[str]) -> set[str]:
        held: dict[int, list[str]] = {}
        for name in names:
            # A segment whose data does not fit is held back, with all that can be published only beside it,
            # and their truncations, which make room.
            if (row := self._row(name)) is not None and self._container.is_short_of_room(
                sid := self._state.closures.segment_of(row.version)
            ):
                held.setdefault(sid, []).append(name)
        truncated: set[str] = set()
        for sid, some in held.items():
            truncated |= await self._truncated.among(sid, some)
        # As of now: what was published meanwhile wakes nobody again.
        return {name for name in names if name not in truncated and self._row(name) is not None}

    def _row(self, name: str) -> Row | None:
        return self._state.table.find_in_memory(chunk_key(name).encode())


class ReleasedRecords:
    """The files that were released according to metadata (rule S19); ``forget`` is one commit."""

    def __init__(self, store: LoggedMetadataStore) -> None:
        self._store = store

    async def among(self, names: Sequence[str]) -> list[str]:
        _, found = await self._store.look_up(map(released_key, names))
        return [key.removeprefix(RELEASED_PREFIX) for key in found]

    async def names(self) -> Sequence[str]:
        records = await self._store.records(RELEASED_PREFIX)
        return [
            key.removeprefix(RELEASED_PREFIX)
            for key, (_, value) in records.items()
            if _is_readable(key, value)
        ]

    async def forget(self, names: Sequence[str]) -> None:
        _, found = await self._store.look_up(map(released_key, names))
        await self._store.commit({key: version for key, (version, _) in found.items()}, dict.fromkeys(found))


def _is_readable(key: str, value: bytes) -> bool:
    try:
        decode_record(ReleasedRecord, key, value)
    except DataCorruption as error:
        # It may be of a newer version, which will know what to do with it.
        _log.error("released_unreadable", record=key, error=str(error))
        return False

    return True


class ContainerFlushSource:
    """The container as the storage writer sees it (``FlushSource``)."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = container.state

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def sequence(self) -> int:
        return self._state.sequence

    @property
    def client_sequence(self) -> int:
        return self._state.client_sequence

    @property
    def refuses_rows(self) -> bool:
        return self._state.table.memory >= self._container.options.admission.row_bytes

    @property
    def has_unpublished_rows(self) -> bool:
        # Images are no rows before their run is written (rule M13).
        return self._state.table.is_dirty or self._container.table_runs.lacks_room

    @property
    def held(self) -> Collection[int]:
        return self._state.table.runs.held

    def begin_cut(self) -> CycleCut:
        return self._container.table_runs.begin_cycle()

    async def abandon(self, cut: CycleCut) -> None:
        await self._container.table_runs.abandon_cycle(cut)

    def dirty_segments(self) -> Iterator[FlushableSegment]:
        return self._state.segments.dirty_segments()

    def segment_of(self, sid: int) -> FlushableSegment | None:
        return self._state.segments.get(sid)

    async def wait_durable(self) -> None:
        await self._container.wait_published()

    async def log(self, op: Operation) -> object:
        return await self._container.log_operation(op)

    async def forget(self, sid: int) -> object:
        return await self._container.log_operation(ForgetSegment(sid))


class ContainerManifestSource:
    """The container as its ownership of long-term storage sees it (``ManifestSource``)."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = container.state

    @property
    def container(self) -> int:
        return self._container.index

    @property
    def manifest(self) -> ManifestState:
        return self._state.manifest

    @property
    def newest_segment(self) -> int:
        return self._state.newest_segment

    @property
    def sequence(self) -> int:
        return self._state.sequence

    def claim_records(self) -> Mapping[int, ClaimRecord]:
        return claim_records(self._state.resident)

    async def some_chunk(self) -> str | None:
        key = await self._container.metadata.first(CHUNK_PREFIX)
        return None if key is None else key.removeprefix(CHUNK_PREFIX)

    def now_ms(self) -> int:
        return self._container.world.time_ms()

    async def log(self, op: Operation) -> object:
        return await self._container.log_operation(op)

    async def wait_durable(self) -> None:
        await self._container.wait_published()


class ContainerCollectorSource:
    """The container as the collector sees it (``CollectorSource``)."""

    def __init__(self, container: Container, pins: Pins) -> None:
        self._container = container
        self.epoch = container.state.epoch
        self.prefixes = (f"containers/{container.index:04d}/", runs_prefix(container.index))
        self.referenced = ReferencedNames(container.state, container.metadata, pins)
        self.pinned = PinnedNames(container, pins)
        self.unpublished = UnpublishedNames(container)
        self.released = ReleasedRecords(container.metadata)
        self._confirmation = container.confirmation
        self._history = container.history

    @property
    def is_confirmed(self) -> bool:
        return self._confirmation.unconfirmed is None

    async def wait_confirmed(self) -> None:
        await self._confirmation.wait_confirmed()

    async def check_history(self, chunks: Sequence[ChunkInfo]) -> None:
        oldest = self._confirmation.oldest_epoch
        for part in in_slices(chunks):
            if (newer := await self._history.find_newer(part, oldest)) is not None:
                await self._confirmation.mark(UnconfirmedRecord(Reason.RESTORED))
                _log.error("log_older_than_chunks", container=self._container.index, chunk=newer.name)
                return

            await anyio.lowlevel.checkpoint()

    def history_checked(self) -> None:
        self._history.forget()

    async def check_chain(self) -> None:
        await self._container.ownership.check_chain()

    async def prove_anew(self) -> None:
        await self._container.ownership.prove_anew()

    async def barrier(self) -> object:
        return await self._container.log_operation(Barrier())
