"""``S3ChunkStorage``: chunks as objects of an S3 bucket, below a prefix.

Objects cannot grow: each write is a new object, made by one conditional put, so that it appears completely or
not at all (rule S2). With ``S3Options.append`` the bucket accepts puts at a write offset, and chunks grow at
their exact end. What a read returns is durable.

A put that is refused because the object exists may itself have created it, if a proxy sent it twice. The
put's id in the object's metadata shows that. After an unknown outcome, the storage actor reads the object
back (rule A12).

A cancelled mutation has an unknown outcome. The only state in memory is which objects were made read-only
here, and whether the service has shown that it appends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import anyio

from ..base.checksum import Buffer
from ..base.chunk_storage import Capabilities, ChunkInfo, ChunkRange, check_chunk_name
from ..base.errors import (
    ChunkExists,
    ChunkNotFound,
    ChunkReadOnly,
    InvalidArgument,
    OutcomeUnknown,
    TierlogError,
    Unavailable,
    Unsupported,
)
from ..base.world import World
from .base import MUTATIONS, BaseChunkStorage, ReadOnlyChunks, bad_offset, size_of
from .s3_concat import Concat
from .s3_errors import RequestInfo, mapped
from .s3_location import S3Location
from .s3_request_counts import S3RequestCounts
from .s3_requests import ListedObject, S3Options, S3Requests, UploadedPart
from .s3_upload import Upload


class S3ChunkStorage(BaseChunkStorage):
    """``world`` provides the ids of puts."""

    def __init__(
        self,
        location: S3Location,
        options: S3Options,
        world: World,
        counts: S3RequestCounts | None = None,
    ) -> None:
        super().__init__()
        self._location = location
        self._options = options
        self._world = world
        self._requests = S3Requests(location.bucket, options, counts)
        self._read_only: set[str] = set()
        self._appends = False
        self._parts = anyio.CapacityLimiter(options.parallel)
        """Each part that is being sent is copied into one buffer: so many at a time, over all puts."""

    def __repr__(self) -> str:
        return f"<S3ChunkStorage {self._location}>"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=self._options.append, concat=True, replace=True, reads_are_durable=True)

    async def _open(self) -> None:
        await self._requests.open(self._location.prefix)
        try:
            await self._sweep()
        except (Unavailable, Unsupported) as error:
            # Counted, but no reason not to open.
            self._failed("sweep", "", error)
        except BaseException:
            await self._requests.close()
            raise

    async def _sweep(self) -> None:
        """Abort the uploads of dead owners, which cost space and are in no list, as far as possible."""
        old = [
            upload
            for upload in await self._requests.uploads(self._location.prefix)
            if upload.age > self._options.upload_age
        ]
        failures: list[TierlogError] = []
        for upload in old:
            try:
                await self._requests.abort_upload(upload.key, upload.upload_id)
            except (Unavailable, Unsupported) as error:
                failures.append(error)
        if failures:
            raise Unavailable(
                f"{len(failures)} of {len(old)} uploads that dead owners left below {self._location} could "
                f"not be aborted; the next sweep tries again: {failures[-1]}"
            ) from failures[-1]

    async def _close(self) -> None:
        await self._requests.close()

    # --- verbs -----------------------------------------------------------------------------------

    async def _info(self, name: str) -> ChunkInfo:
        head = await self._requests.head(self._key(name), name)
        return ChunkInfo(name, head.length, head.read_only)

    async def _create(self, name: str) -> None:
        await self._create_with_content(name, [])

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        # A new id for each call, also of one name: a repetition by the storage actor is another put, and
        # which of both made the object is found out by its bytes (A12).
        put_id, size = self._world.new_id(), size_of(data)
        try:
            if size <= self._options.part_bytes:
                await self._requests.put(self._key(name), name, data, put_id)
            else:
                upload = Upload(self._requests, self._key(name), name, put_id)
                parts = [
                    partial(self._put_part, name, part) for part in _parts(data, self._options.part_bytes)
                ]
                await upload.run(parts, self._options.parallel)
        except ChunkExists as refusal:
            await self._accept_own(name, put_id, refusal)
        return size

    async def _put_part(self, name: str, data: Sequence[Buffer], upload_id: str, number: int) -> UploadedPart:
        async with self._parts:
            return await self._requests.put_part(self._key(name), name, upload_id, number, data)

    async def _write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        # Of this instance only: to ask the service would cost a request for each append, and a segment
        # appends only to chunks that its own owner has created (S3).
        if name in self._read_only:
            raise ChunkReadOnly(f"chunk {name} is read-only", chunk=name)

        size = size_of(data)
        if size and not self._appends:
            await self._try_append()
        # A put at offset 0 would create a missing object, and an empty one would not check the offset.
        if offset == 0 or size == 0:
            await self._check_length(name, offset)
        if size and not await self._requests.append(self._key(name), name, offset, data):
            await self._check_length(name, offset)
            raise Unavailable(
                f"chunk {name} was changed by another writer while {size} bytes were written at {offset}; "
                f"nothing was written"
            )

        return offset + size

    async def _try_append(self) -> None:
        """Raises ``Unsupported`` if the service does not append: some ignore the offset and replace the
        object."""
        put_id = self._world.new_id()
        name = f".trial-{put_id}"  # no chunk's
        key = self._key(name)
        try:
            await self._requests.put(key, name, [b"a"], put_id)
            appended = await self._requests.append(key, name, 1, [b"b"])
            found = await self._requests.get(key, name, 0, 2)
            await self._requests.delete(key, name)
        except OutcomeUnknown as error:
            raise Unavailable(f"whether {self._location} accepts appends is unknown: {error}") from error
        if not appended or found != b"ab":
            raise Unsupported(
                f"{self._location} does not accept puts at a write offset, as directory buckets do: remove "
                f"`append` of [s3] from the configuration"
            )
        self._appends = True

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        if size == 0:
            await self._requests.head(self._key(name), name)
            return b""

        return await self._requests.get(self._key(name), name, offset, size)

    async def _delete(self, name: str) -> None:
        # The service does not report a missing object.
        await self._requests.head(self._key(name), name)
        await self._requests.delete(self._key(name), name)
        self._read_only.discard(name)

    async def _concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        put_id = self._world.new_id()
        try:
            await Concat(self._requests, self._location.prefix, name, put_id, self._options.parallel).run(
                ranges
            )
        except ChunkExists as refusal:
            await self._accept_own(name, put_id, refusal)
        return sum(part.length for part in ranges)

    async def _replace(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        """A put, or the completion of an upload, replaces the object in one step; it is not conditional."""
        await self._requests.head(self._key(name), name)
        prefix, put_id, parallel = self._location.prefix, self._world.new_id(), self._options.parallel
        await Concat(self._requests, prefix, name, put_id, parallel, replaces=True).run(ranges)
        return sum(part.length for part in ranges)

    async def _set_read_only(self, name: str, read_only: bool) -> None:
        head = await self._requests.head(self._key(name), name)
        # A change copies the whole object, so one that changes nothing is left out.
        if head.read_only != read_only:
            await self._requests.set_read_only(self._key(name), name, head, read_only)
        if read_only:
            self._read_only.add(name)
        else:
            self._read_only.discard(name)

    async def _list(self, prefix: str, after: str) -> AsyncGenerator[ChunkInfo, None]:
        if self._options.append:
            # Directory buckets support only prefixes that end with a slash, and list in any order.
            folder = await self._all(prefix[: prefix.rfind("/") + 1])
            found = [info for info in folder if info.name.startswith(prefix) and info.name > after]
            for info in sorted(found, key=lambda info: info.name):
                yield info
            return

        async with aclosing(self._pages(prefix, after)) as pages:
            async for page in pages:
                for info in page:
                    yield info

    async def _all(self, prefix: str) -> list[ChunkInfo]:
        async with aclosing(self._pages(prefix)) as pages:
            return [info async for page in pages for info in page]

    async def _pages(self, prefix: str, after: str = "") -> AsyncGenerator[list[ChunkInfo], None]:
        keys = self._key(prefix), self._key(after) if after else ""
        async with aclosing(self._requests.list_pages(*keys)) as pages:
            async for listed in pages:
                yield [info for info in map(self._chunk_of, listed) if info is not None]

    async def _used_space(self) -> int:
        return sum(info.length for info in await self._all(""))

    def _mapped(self, error: Exception, verb: str, name: str) -> TierlogError:
        return mapped(
            error,
            RequestInfo(
                verb,
                self._location.bucket,
                self._options.endpoint,
                self._key(name),
                name,
                visible=verb in MUTATIONS,
            ),
        )

    # --- names and refusals ----------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return self._location.prefix + name

    def _chunk_of(self, found: ListedObject) -> ChunkInfo | None:
        """The chunk of an object, or None for an object whose key is not a chunk name."""
        name = found.key.removeprefix(self._location.prefix)
        try:
            check_chunk_name(name)
        except InvalidArgument:
            return None
        return ChunkInfo(name, found.length)

    async def _check_length(self, name: str, offset: int) -> None:
        length = (await self._requests.head(self._key(name), name)).length
        if length != offset:
            raise bad_offset(name, length, offset)

    async def _accept_own(self, name: str, put_id: str, refusal: ChunkExists) -> None:
        """Raise ``refusal`` unless the existing object was made by the refused put itself."""
        try:
            head = await self._requests.head(self._key(name), name)
        except ChunkNotFound:
            raise refusal from None
        except TierlogError as error:
            raise OutcomeUnknown(
                f"chunk {name} exists, and whether this call created it is unknown: {error}"
            ) from error

        if head.put_id != put_id:
            raise refusal


def _parts(data: Sequence[Buffer], size: int) -> list[list[Buffer]]:
    """``data`` in pieces of ``size`` bytes, not copied; the last one has the rest."""
    parts: list[list[Buffer]] = [[]]
    room = size
    for buffer in data:
        view = memoryview(buffer)
        while view:
            if not room:
                parts.append([])
                room = size
            parts[-1].append(view[:room])
            view, room = view[room:], room - min(room, len(view))
    return parts


class S3ChunkReader(ReadOnlyChunks, S3ChunkStorage):
    """The chunks of a bucket, read-only: every change raises ``Unsupported``. ``open`` checks that the bucket
    exists and sweeps nothing."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=False, concat=False, reads_are_durable=True)

    async def _sweep(self) -> None:
        return
