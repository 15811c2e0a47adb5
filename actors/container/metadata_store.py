"""Chunk metadata in the container's own log: the ``ChunkMetadataStore`` of chunked segment storage.

A commit is one internal operation. It is conditional because it is decided in sequence with everything else,
durable and fenced because it is logged, and part of every checkpoint (rule S6). Reads see the newest commit
that has a sequence; ``commit`` returns once it is durable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ...storage_backends.base.errors import InvalidArgument
from ...storage_backends.base.sorted_dict import with_prefix
from ...storage_backends.segments.metadata_store import TRANSACTION_BYTES_MAX, ChunkMetadataStore
from ..kernel.slices import list_in_slices
from .operations.metadata import CommitMetadataRequest
from .requests import Request
from .state import ContainerState


class LoggedMetadataStore(ChunkMetadataStore):
    def __init__(self, state: ContainerState, ask: Callable[[Request, int], Awaitable[object]]) -> None:
        """``ask(request, size)`` sends a request of ``size`` bytes in the internal lane."""
        self._state = state
        self._ask = ask

    async def get(self, key: str) -> tuple[int, bytes] | None:
        return self._state.metadata.get(key)

    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        unchecked = [key for key in writes if key not in expected]
        if unchecked:
            raise InvalidArgument(f"every written key needs an expected version, {unchecked[0]!r} has none")

        size = sum(len(key) + len(value or b"") for key, value in writes.items())
        if size > TRANSACTION_BYTES_MAX:
            # In the log it could be a group that is too large, which would end every owner that tries it.
            raise InvalidArgument(
                f"a commit has at most {TRANSACTION_BYTES_MAX} bytes of keys and values, this one has {size}"
            )

        version = await self._ask(CommitMetadataRequest(expected, writes), size)
        assert isinstance(version, int)
        return version

    async def scan(self, prefix: str) -> list[str]:
        return await list_in_slices(with_prefix(self._state.metadata.runs_from(prefix), prefix))
