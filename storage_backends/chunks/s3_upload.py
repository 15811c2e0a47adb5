"""One multipart upload: an object whose parts are sent or copied at the same time.

Nothing is visible before the completion, which is conditional. An upload that does not complete is aborted,
also when the caller is cancelled, and also when its id was lost on the way: names are never used twice (rule
S2), so any upload of this key is ours. If the abort fails too, or the process dies, the next sweep aborts it
(``S3Options.upload_age``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import anyio

from ..base.errors import OutcomeUnknown, TierlogError, Unavailable
from ..base.parallel import in_parallel
from .s3_requests import S3Requests, UploadedPart

_ABORT_SECONDS = 10.0
MakePart: TypeAlias = Callable[[str, int], Awaitable[UploadedPart]]
"""(upload id, part number) -> the part, which the service has."""


class Upload:
    """Creates the chunk ``name`` as the object ``key``."""

    def __init__(self, requests: S3Requests, key: str, name: str, put_id: str) -> None:
        self._requests = requests
        self._key = key
        self._name = name
        self._put_id = put_id

    async def run(self, parts: Sequence[MakePart], parallel: int) -> None:
        """Make ``parts``, up to ``parallel`` at a time, and the object of them. Raises ``ChunkExists``."""
        upload_id = await self._begin()
        try:
            calls = [partial(make_part, upload_id, number) for number, make_part in enumerate(parts, 1)]
            made = await in_parallel(parallel, calls)
            # The only step that others can see, and conditional like a put (S2).
            await self._requests.complete_upload(self._key, self._name, upload_id, made)
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
