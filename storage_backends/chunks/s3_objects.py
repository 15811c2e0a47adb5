"""``S3Objects``: the objects below a prefix of an S3 bucket as an ``ObjectStore``. A cancelled put or
deletion has an unknown outcome; nothing else is kept in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from ..base.checksum import Buffer
from ..base.errors import ChunkExists, ChunkNotFound, Unavailable
from ..base.object_store import ListedKey, ObjectStore, StoredObject
from .s3_errors import status_of
from .s3_location import S3Location
from .s3_request_counts import S3RequestCounts
from .s3_requests import S3Options, S3Requests


class S3Objects(ObjectStore):
    def __init__(
        self, location: S3Location, options: S3Options, counts: S3RequestCounts | None = None
    ) -> None:
        self._location = location
        self._requests = S3Requests(location.bucket, options, counts)

    async def open(self) -> None:
        await self._requests.open(self._location.prefix)

    async def close(self) -> None:
        await self._requests.close()

    def place(self, key: str) -> str:
        return f"s3://{self._location.bucket}/{self._location.prefix}{key}"

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        try:
            return await self._requests.put_if(self._location.prefix + key, key, data, version)
        except (ChunkExists, ChunkNotFound):
            # AWS answers 404 if what should be replaced is gone.
            return None

    async def get(self, key: str, size: int) -> StoredObject | None:
        try:
            return await self._requests.get_start(self._location.prefix + key, key, size)
        except ChunkNotFound:
            return None

    async def find_elsewhere(self, key: str, size: int) -> bytes | None:
        """The first ``size`` bytes of an object of the bucket, whatever its prefix. None if there is none,
        or the credentials may not read it: those of a store may be for its prefix alone."""
        try:
            return (await self._requests.get_start(key, key, size)).data
        except ChunkNotFound:
            return None
        except Unavailable as error:
            if status_of(error.__cause__ or error) != 403:
                raise
            return None

    async def list(self, prefix: str) -> AsyncGenerator[ListedKey, None]:
        skipped = len(self._location.prefix)
        async with aclosing(self._requests.list_pages(self._location.prefix + prefix)) as pages:
            async for page in pages:
                for each in page:
                    yield ListedKey(each.key[skipped:], each.length)

    async def delete(self, key: str) -> None:
        await self._requests.delete(self._location.prefix + key, key)
