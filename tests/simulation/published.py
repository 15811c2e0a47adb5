"""What long-term storage alone needs, looked at past all faults: a chunk that the newest element still names
is not deleted (rule G6). On a full storage it may be, if all that the element names of it was truncated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache, partial

from support.sorted_runs import rows_of_run
from tierlog.actors.container.container import Container
from tierlog.actors.container.published_check import pages_of_rows
from tierlog.journal.manifest.chain import element_name, journal_prefix
from tierlog.journal.manifest.element import Element, Pin
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.segments.records.chunk import ChunkRecord, chunk_key
from tierlog.storage_backends.segments.records.segment import SEGMENT_PREFIX, SegmentRecord
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.table import Table

from .records import CHUNK_PREFIX, OWN_CHUNKS


class PublishedChunks:
    def __init__(
        self,
        names: Callable[[], Sequence[str]],
        stored: Callable[[str], bytes],
        truncated_to: Callable[[int, int], int] = lambda container, segment: 0,
    ) -> None:
        """``names()``: of all objects in long-term storage. ``stored(name)``: an object's bytes.
        ``truncated_to(container, segment)``: up to where the segment's bytes may be missing."""
        self._names = names
        self._stored = stored
        self._truncated_to = truncated_to

    def needs(self, chunk: str) -> bool:
        """Whether the newest element of the chunk's container has a record of it with bytes that nobody has
        truncated. What is damaged has none: a boot from it is refused."""
        if not chunk.startswith(OWN_CHUNKS):
            return False

        container = int(chunk.split("/")[1])
        prefix = journal_prefix(container)
        numbers = [int(name[len(prefix) :], 16) for name in self._names() if name.startswith(prefix)]
        if not numbers:
            return False

        try:
            element = Element.decode(self._stored(element_name(container, max(numbers))))
            rows = [_rows(run, self._stored(run.name)) for run in element.runs]
        except (DecodeError, TierlogError, KeyError, OSError):
            return False

        is_named = _newest(rows, chunk_key(chunk)) is not None
        return is_named and not is_truncated(rows, chunk, partial(self._truncated_to, container))


def is_truncated(rows: Sequence[Mapping[bytes, Row]], chunk: str, truncated_to: Callable[[int], int]) -> bool:
    """Whether all bytes that a segment has in the chunk, by the rows of one or more runs, were truncated."""
    keys = dict.fromkeys(key for each in rows for key in each if key.startswith(SEGMENT_PREFIX.encode()))
    for key in keys:
        if (value := _newest(rows, key.decode())) is None:
            continue

        segment = SegmentRecord.decode(value)
        name, end = segment.first_chunk, segment.first_chunk_start
        while name and (value := _newest(rows, chunk_key(name))) is not None:
            record = ChunkRecord.decode(value)
            end += record.length
            if name == chunk:
                return end <= truncated_to(segment.segment)
            name = record.next_chunk
    return False


def _newest(rows: Iterable[Mapping[bytes, Row]], key: str) -> bytes | None:
    """The value in the newest row of ``key``."""
    found = [row for each in rows if (row := each.get(key.encode())) is not None]
    return max(found, key=lambda row: row.version).value if found else None


@lru_cache(maxsize=512)
def _rows(run: RunEntry, data: bytes) -> dict[bytes, Row]:
    return {row.key: row for row in rows_of_run(run, data)}


async def names_kept_by(container: Container, pin: Pin) -> set[str]:
    """The runs and chunks that the pin keeps, as far as the owner has read the backup's record by now."""
    runs = container.pins._runs.get(pin, RunList())
    names = {run.name for run in runs}
    with Table(runs).view() as view:
        async with aclosing(pages_of_rows(view, container.runs, CHUNK_PREFIX.encode())) as pages:
            async for rows in pages:
                names.update(row.key.decode().removeprefix(CHUNK_PREFIX) for row in rows)
    return names
