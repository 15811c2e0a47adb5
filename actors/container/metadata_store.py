"""The records of long-term storage in the container's system table: the ``ChunkMetadataStore`` of chunked
segment storage.

A commit is one internal operation. It is conditional because it is decided in sequence with everything else,
durable and fenced because it is logged (rule S6). Its conditions are looked up before, where rows have left
memory (rule M9). Reads see the newest commit that has a sequence; ``commit`` returns once it is durable."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing

from ...storage_backends.base.errors import InvalidArgument, Unavailable
from ...storage_backends.segments.metadata_store import TRANSACTION_BYTES_MAX, ChunkMetadataStore
from ...storage_backends.sorted_runs.lookup import find_cached, find_row, find_rows
from ...storage_backends.sorted_runs.memtable import find_conflict, version_of
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, prefix_end
from ...storage_backends.sorted_runs.scan import KeyRange, Page, PageLimits, scan_rows
from .operations.metadata import CommitMetadataRequest, conflict
from .requests import Request
from .state import ContainerState

Found = tuple[int, bytes]
"""The version and the value of a record."""
_PAGE = PageLimits(512)
_COMPARED_MAX = 512
"""The most keys times runs that one step looks up."""
ATTEMPTS_MAX = 10
"""A commit starts over if rows were released after its lookup, which happens once per flush cycle."""


class LoggedMetadataStore(ChunkMetadataStore):
    def __init__(
        self, state: ContainerState, ask: Callable[[Request, int], Awaitable[object]], runs: RunReader
    ) -> None:
        """``ask(request, size)`` sends a request of ``size`` bytes in the internal lane."""
        self._state = state
        self._ask = ask
        self._runs = runs

    async def get(self, key: str) -> Found | None:
        """Raises ``Unavailable`` if the row is in a run that cannot be read, and ``DataCorruption``."""
        row = self._state.find_record(key)
        if row is None and (runs := self._state.table.runs).records_to:
            is_known, row = find_cached(runs, self._runs, key.encode())
            if not is_known:
                with self._state.table.view() as view:
                    row = await find_row(view, self._runs, key.encode())
        return _found(row)

    async def look_up(self, keys: Iterable[str]) -> tuple[int, dict[str, Found]]:
        """The version of one view of the table, and which of ``keys`` have a record in it. Raises as
        ``get``."""
        table = self._state.table
        with table.view() as view:
            rows = {key: self._state.find_record(key) for key in keys}
            unknown = (
                {key: key.encode() for key, row in rows.items() if row is None}
                if table.runs.records_to
                else {}
            )
            if unknown:
                found_rows = await find_rows(view, self._runs, unknown.values())
                rows.update({key: found_rows.get(encoded) for key, encoded in unknown.items()})
            return view.version, {key: found for key, row in rows.items() if (found := _found(row))}

    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        size = 0
        for key, value in writes.items():
            if key not in expected:
                raise InvalidArgument(f"every written key needs an expected version, {key!r} has none")
            size += len(key) + len(value or b"")
        if size > TRANSACTION_BYTES_MAX:
            # In the log it could be a group that is too large, which would end every owner that tries it.
            raise InvalidArgument(
                f"a commit has at most {TRANSACTION_BYTES_MAX} bytes of keys and values, this one has {size}"
            )

        for _ in range(ATTEMPTS_MAX):
            seen = await self._check(expected) if self._state.table.runs.records_to else 0
            version = await self._ask(CommitMetadataRequest(expected, writes, seen), size)
            if version is not None:
                assert isinstance(version, int)
                return version

        raise Unavailable("runs were published during each attempt of a commit: try again")

    async def _check(self, expected: Mapping[str, int]) -> int:
        """Raises ``MetadataConflict`` unless the versions are as expected in one view, whose version it
        returns."""
        if self._is_known(expected):
            return self._state.table.version

        seen, found = await self.look_up(expected)
        if wrong := find_conflict(expected, lambda key: found[key][0] if key in found else 0):
            raise conflict(*wrong)

        return seen

    def _is_known(self, expected: Mapping[str, int]) -> bool:
        """Whether what is in memory and in the cache proves that all have the expected versions. Those in
        memory too: they may leave it before the decision, which compares what is still there."""
        runs = self._state.table.runs
        if len(expected) * len(runs) > _COMPARED_MAX:
            return False

        for key, version in expected.items():
            is_known, row = True, self._state.find_record(key)
            if row is None:
                is_known, row = find_cached(runs, self._runs, key.encode())
            if not is_known or version_of(row) != version:
                return False
        return True

    async def scan(self, prefix: str) -> list[str]:
        keys: list[str] = []
        async with aclosing(self._pages(prefix)) as pages:
            async for page in pages:
                keys += [row.key.decode() for row in page.rows]
        return keys

    async def records(self, prefix: str) -> dict[str, Found]:
        """All records whose keys begin with ``prefix``, in order, as of one moment. Raises as ``get``."""
        found: dict[str, Found] = {}
        async with aclosing(self._pages(prefix)) as pages:
            async for page in pages:
                found |= {
                    row.key.decode(): (row.version, row.value) for row in page.rows if row.value is not None
                }
        return found

    async def first(self, prefix: str) -> str | None:
        """The first key that begins with ``prefix``; None if there is none. Raises as ``get``."""
        start = prefix.encode()
        with self._state.table.view() as view:
            page = await scan_rows(view, self._runs, KeyRange(start, prefix_end(start)), PageLimits(1))
        return page.rows[0].key.decode() if page.rows else None

    async def _pages(self, prefix: str) -> AsyncGenerator[Page, None]:
        start: bytes | None = prefix.encode()
        end = prefix_end(prefix.encode())
        with self._state.table.view() as view:
            while start is not None:
                page = await scan_rows(view, self._runs, KeyRange(start, end), _PAGE)
                yield page
                start = page.resume


def _found(row: Row | None) -> Found | None:
    return None if row is None or row.value is None else (row.version, row.value)
