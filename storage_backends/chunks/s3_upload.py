"""One multipart upload: an object whose parts are sent or copied at the same time.

Nothing is visible before the completion, which is conditional. An upload that does not complete is aborted,
also when the caller is cancelled, and also when its id was lost on the way: names are never used twice (rule
S2), so any upload of this key is ours. One whose abort fails too is aborted after a later upload of the same
owner; if the process dies before that, a sweep aborts it (``S3Options.upload_age``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

import anyio

from ..base.errors import OutcomeUnknown, TierlogError, Unavailable
from ..base.parallel import in_parallel
from .s3_requests import S3Requests, UploadedPart

_ABORT_SECONDS = 10.0
_LOST = ""
"""The id of an upload whose beginning was not answered: it is found by its key."""
MakePart: TypeAlias = Callable[[str, int], Awaitable[UploadedPart]]
"""(upload id, part number) -> the part, which the service has."""


class Upload:
    """Creates the chunk ``name`` as the object ``key``; with ``replaces`` in place of the one there. Without
    ``checksums`` no part has one."""

    def __init__(
        self,
        requests: S3Requests,
        key: str,
        name: str,
        put_id: str,
        *,
        replaces: bool = False,
        checksums: bool = True,
    ) -> None:
        self._requests = requests
        self._key = key
        self._name = name
        self._put_id = put_id
        self._replaces = replaces
        self._checksums = checksums

    async def run(self, parts: Sequence[MakePart], parallel: int) -> None:
        """Make ``parts``, up to ``parallel`` at a time, and the object of them. Raises ``ChunkExists``."""
        with self._kept_from_aborts():
            await self._run(parts, parallel)
        await self._abort_left()

    async def _run(self, parts: Sequence[MakePart], parallel: int) -> None:
        upload_id = await self._begin()
        try:
            calls = [partial(make_part, upload_id, number) for number, make_part in enumerate(parts, 1)]
            made = await in_parallel(parallel, calls)
            # The only step that others can see, and conditional like a put (S2).
            await self._requests.complete_upload(
                self._key, self._name, upload_id, made, replaces=self._replaces
            )
        except BaseException:
            await self._abort(self._key, upload_id)
            raise

    @contextmanager
    def _kept_from_aborts(self) -> Iterator[None]:
        """An earlier attempt at this key may have left an upload without a known id. Another upload that ends
        meanwhile would abort all of the key's, so also this one."""
        left = self._requests.left_uploads
        earlier = (self._key, _LOST)
        if earlier not in left:
            yield
            return

        left.discard(earlier)
        try:
            yield
        finally:
            left.add(earlier)

    async def _begin(self) -> str:
        """The id of a new upload. After a failure none is left, so it is ``Unavailable``: uploads are
        invisible."""
        try:
            return await self._requests.begin_upload(
                self._key, self._name, self._put_id, checksums=self._checksums
            )
        except OutcomeUnknown as error:
            await self._abort(self._key, _LOST)
            raise Unavailable(f"no upload was begun for chunk {self._name}: {error}") from error
        except anyio.get_cancelled_exc_class():
            await self._abort(self._key, _LOST)
            raise

    async def _abort_left(self) -> None:
        """One that an earlier upload left, and not all: each costs the caller of this one time."""
        left = self._requests.left_uploads
        if left:
            await self._abort(*left.pop())

    async def _abort(self, key: str, upload_id: str) -> None:
        """What cannot be aborted is left to a later upload. The caller gets the original error."""
        requests = self._requests
        requests.left_uploads.add((key, upload_id))
        with anyio.move_on_after(_ABORT_SECONDS, shield=True), suppress(TierlogError):
            for each in await self._lost(key) if upload_id == _LOST else [upload_id]:
                await requests.abort_upload(key, each)
            requests.left_uploads.discard((key, upload_id))

    async def _lost(self, key: str) -> list[str]:
        """The uploads of ``key``."""
        folder = key[: key.rfind("/") + 1]  # Directory buckets support no other prefixes.
        return [upload.upload_id for upload in await self._requests.uploads(folder) if upload.key == key]
