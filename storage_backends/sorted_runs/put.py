"""Encodes rows as a run, in slices of the loop, and puts the run into chunk storage (rules M2 and S2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from anyio.lowlevel import checkpoint
from msgspec import Struct

from ..base.checksum import Buffer
from ..base.chunk_storage import ChunkStorage
from ..base.errors import ChunkExists, DataCorruption, OutcomeUnknown
from .encoder import RUN_BYTES_MAX, EncodedRun, RunEncoder
from .parts import crc32c_in_slices, parts_of
from .rows import Row
from .run_entry import RunEntry

_SLICE_ROWS = 256
_SLICE_BYTES = 256 << 10


class RunBytes(Struct, frozen=True):
    """A run in memory."""

    run: EncodedRun
    pieces: Sequence[Buffer]


async def encode_run(
    new_name: Callable[[], str], rows: Iterator[Row | None], run_bytes_max: int = RUN_BYTES_MAX
) -> RunBytes | None:
    """A run, named by ``new_name``, of the next ``rows``, whose keys ascend, up to about ``run_bytes_max``;
    None if there are none. Call it again for the rest. The loop gets a turn about every millisecond, also
    where ``rows`` has only None, for a row that it skipped. For the few thousand rows of a cycle, a helper
    process would take longer to start."""
    encoder: RunEncoder | None = None
    length = 0
    turn_at = _SLICE_BYTES
    for visited, row in enumerate(rows, 1):
        if row is not None:
            encoder = encoder or RunEncoder(new_name())
            encoder.add(row)
            length = encoder.length
        if length >= run_bytes_max:
            break
        if visited % _SLICE_ROWS == 0 or length >= turn_at:
            turn_at = length + _SLICE_BYTES
            await checkpoint()
    return None if encoder is None else RunBytes(encoder.finish(), encoder.take())


async def put_run(chunks: ChunkStorage, run: RunEntry, pieces: Sequence[Buffer]) -> None:
    """Create the run's object. After an unknown outcome or a crash, call it again with the same name and
    bytes: an object that holds them is success where reads are durable. Elsewhere it raises
    ``OutcomeUnknown``: put the run under another name. Raises ``DataCorruption`` if the object or ``pieces``
    hold other bytes, else what ``ChunkStorage.create_with_content`` raises."""
    # Memory may have changed since; once it is put, the manifest would name a damaged run.
    if await crc32c_in_slices(pieces) != run.crc:
        raise DataCorruption("the bytes of a sorted run changed before they were put", file=run.name)

    try:
        await chunks.create_with_content(run.name, pieces)
    # An earlier attempt with this name, or another object.
    except ChunkExists as error:
        # One byte more, so that a longer object is not taken for this one.
        stored = [await chunks.read(run.name, *part) for part in parts_of(run.length + 1)]
        if sum(map(len, stored)) != run.length or await crc32c_in_slices(stored) != run.crc:
            raise DataCorruption(
                "another object has the name of a sorted run; names are never used twice", file=run.name
            ) from error
        if not chunks.capabilities.reads_are_durable:
            raise OutcomeUnknown(
                f"the sorted run {run.name} was put before and may not be durable; put it under another name"
            ) from error
