"""What long-term storage alone names, looked at past all faults: a chunk that the newest element still names
is not deleted (rule G6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from support.sorted_runs import rows_of_run
from tierlog.journal.manifest.chain import element_name, journal_prefix
from tierlog.journal.manifest.element import Element
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry

from .records import OWN_CHUNKS


class PublishedChunks:
    def __init__(self, names: Callable[[], Sequence[str]], stored: Callable[[str], bytes]) -> None:
        """``names()``: of all objects in long-term storage. ``stored(name)``: an object's bytes."""
        self._names = names
        self._stored = stored

    def names(self, chunk: str) -> bool:
        """Whether the newest element of the chunk's container has a record of it. What is damaged has none: a
        boot from it is refused."""
        if not chunk.startswith(OWN_CHUNKS):
            return False

        container = int(chunk.split("/")[1])
        prefix = journal_prefix(container)
        numbers = [int(name[len(prefix) :], 16) for name in self._names() if name.startswith(prefix)]
        if not numbers:
            return False

        try:
            element = Element.decode(self._stored(element_name(container, max(numbers))))
            rows = [self._row(run, f"c:{chunk}".encode()) for run in element.runs]
        except (DecodeError, TierlogError, KeyError, OSError):
            return False

        return max((row for row in rows if row is not None), default=(0, False))[1]

    def _row(self, run: RunEntry, key: bytes) -> tuple[int, bool] | None:
        """The version of the run's row of ``key``, and whether it is no tombstone."""
        return _rows(run, self._stored(run.name)).get(key)


@lru_cache(maxsize=512)
def _rows(run: RunEntry, data: bytes) -> dict[bytes, tuple[int, bool]]:
    return {row.key: (row.version, row.value is not None) for row in rows_of_run(run, data)}
