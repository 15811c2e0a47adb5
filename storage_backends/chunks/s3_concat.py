"""One concat on S3: a new object from exact ranges of others, which are only read (rule S4).

Nothing is visible before the completion of the multipart upload, which is conditional. An upload that does
not complete is aborted, also when the caller is cancelled, and also when its id was lost on the way: names
are never used twice (rule S2), so any upload of this key is ours. If the abort fails too, or the process
dies, the next sweep aborts it (``S3Options.upload_age``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio

from ..base.chunk_storage import ChunkRange
from ..base.errors import OutcomeUnknown, TierlogError, Unavailable
from .base import bad_offset
from .s3_plan import CopiedPart, JoinedPart, Part, plan_parts
from .s3_requests import S3Requests

T = TypeVar("T")
_ABORT_SECONDS = 10.0


async def in_parallel(limit: int, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results of ``calls``, with at most ``limit`` at a time. The first error cancels the others and is
    raised."""
    results: dict[int, T] = {}
    failures: list[TierlogError] = []
    turns = anyio.CapacityLimiter(limit)

    async def carry_out(index: int, call: Callable[[], Awaitable[T]]) -> None:
        async with turns:
            try:
                results[index] = await call()
            except TierlogError as error:
                failures.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for index, call in enumerate(calls):
            group.start_soon(carry_out, index, call)
    if failures:
        raise failures[0]

    return [results[index] for index in range(len(calls))]


class Concat:
    """Creates the chunk ``name``, whose key is ``prefix + name``."""

    def __init__(self, requests: S3Requests, prefix: str, name: str, put_id: str, parallel: int) -> None:
        self._requests = requests
        self._prefix = prefix
        self._name = name
        self._key = prefix + name
        self._put_id = put_id
        self._parallel = parallel

    async def run(self, ranges: Sequence[ChunkRange]) -> None:
        """Raises what ``create_with_content`` raises, and ``BadChunkOffset`` for a range past its source's
        end."""
        await self._check_sources(ranges)
        parts = plan_parts(ranges)
        if not parts:
            await self._requests.put(self._key, self._name, [], self._put_id)
        elif len(parts) == 1 and isinstance(parts[0], JoinedPart):
            await self._requests.put(self._key, self._name, await self._fetch(parts[0]), self._put_id)
        else:
            await self._upload(parts)

    async def _check_sources(self, ranges: Sequence[ChunkRange]) -> None:
        names = list(dict.fromkeys(part.name for part in ranges))
        heads = await in_parallel(
            self._parallel, [partial(self._requests.head, self._prefix + name, name) for name in names]
        )
        lengths = {name: head.length for name, head in zip(names, heads, strict=True)}
        for part in ranges:
            if part.offset + part.length > lengths[part.name]:
                raise bad_offset(part.name, lengths[part.name], part.offset + part.length)

    async def _upload(self, parts: Sequence[Part]) -> None:
        upload_id = await self._begin()
        try:
            calls = [
                partial(self._make_part, part, upload_id, number) for number, part in enumerate(parts, 1)
            ]
            tags = await in_parallel(self._parallel, calls)
            await self._requests.complete_upload(self._key, self._name, upload_id, tags)
        except BaseException:
            await self._abort(upload_id)
            raise

    async def _begin(self) -> str:
        """The id of a new upload. After a failure none is left, so it is ``Unavailable``: uploads are
        invisible."""
        try:
            return await self._requests.begin_upload(self._key, self._name, self._put_id)
        except OutcomeUnknown as error:
            await self._abort_lost()
            raise Unavailable(f"no upload was begun for chunk {self._name}: {error}") from error
        except anyio.get_cancelled_exc_class():
            await self._abort_lost()
            raise

    async def _make_part(self, part: Part, upload_id: str, number: int) -> str:
        if isinstance(part, CopiedPart):
            source = part.source
            at = self._prefix + source.name
            return await self._requests.copy_part(
                self._key, self._name, upload_id, number, at, source.offset, source.length
            )

        return await self._requests.put_part(
            self._key, self._name, upload_id, number, await self._fetch(part)
        )

    async def _fetch(self, part: JoinedPart) -> list[bytes]:
        data = []
        for each in part.sources:
            found = await self._requests.get(self._prefix + each.name, each.name, each.offset, each.length)
            if len(found) != each.length:
                raise Unavailable(
                    f"chunk {each.name} became shorter while it was read: {len(found)} of {each.length} "
                    f"bytes at {each.offset}"
                )
            data.append(found)
        return data

    async def _abort(self, upload_id: str) -> None:
        with anyio.move_on_after(_ABORT_SECONDS, shield=True):
            try:
                await self._requests.abort_upload(self._key, upload_id)
            except TierlogError:
                return  # Left to the next sweep; the caller gets the original error.

    async def _abort_lost(self) -> None:
        """Find the upload whose id was lost, and abort it."""
        folder = self._key[: self._key.rfind("/") + 1]  # Directory buckets support no other prefixes.
        with anyio.move_on_after(_ABORT_SECONDS, shield=True):
            try:
                for upload in await self._requests.uploads(folder):
                    if upload.key == self._key:
                        await self._requests.abort_upload(upload.key, upload.upload_id)
            except TierlogError:
                return  # As above.
