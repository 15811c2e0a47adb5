"""What imports, exports and header updates need of the container whose segments they are about."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.segments.chain import Chain
from ...storage_backends.segments.metadata_store import ChunkMetadataStore
from ...storage_backends.segments.storage import ChunkedSegmentStorage


class KnownSegment(Protocol):
    @property
    def sid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def is_table(self) -> bool: ...
    @property
    def has_record(self) -> bool: ...
    @property
    def is_gone(self) -> bool: ...


class KnownSegments(Protocol):
    """The container's segments, by name and by id."""

    def dirty_segments(self) -> Iterable[KnownSegment]:
        """The segments that changed since they were flushed, and deleted ones that still have a record."""
        ...

    def get(self, sid: int) -> KnownSegment | None:
        """The segment of that id, if it is in memory."""
        ...


class ColdSegments(Protocol):
    """All of the container's segments, also those that are not in memory."""

    def pages(self) -> AsyncGenerator[list[tuple[str, int]], None]:
        """Names and ids."""
        ...

    async def sid_of(self, name: str) -> int | None: ...
    async def find(self, name: str) -> KnownSegment | None: ...


class Importer(Protocol):
    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """One import of a name at a time."""
        ...

    async def check_free(self, name: str, files: Iterable[str] = ()) -> None:
        """Raises ``SegmentExists``, ``InvalidArgument`` or ``Unavailable`` if ``files`` cannot become
        ``name``."""
        ...

    async def import_chain(self, name: str, chain: Chain) -> None: ...


class ContainerAccess(Protocol):
    @property
    def chunks(self) -> ChunkStorage: ...
    @property
    def metadata(self) -> ChunkMetadataStore: ...
    @property
    def storage(self) -> ChunkedSegmentStorage: ...
    @property
    def segments(self) -> KnownSegments: ...
    @property
    def cold(self) -> ColdSegments: ...
    @property
    def imports(self) -> Importer: ...
    @property
    def rolling_size(self) -> int:
        """The size in bytes at which chunks of a segment roll whose header gives none."""
        ...

    async def claim_storage(self) -> None:
        """Returns once this owner may write to long-term storage (rule W8)."""
        ...

    async def wait_durable(self) -> None:
        """Returns once everything decided so far is durable, which proves the ownership (rule C1)."""
        ...
