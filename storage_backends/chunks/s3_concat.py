"""One concat on S3: a new object from exact ranges of others, which are only read (rule S4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..base.chunk_storage import ChunkRange
from ..base.errors import Unavailable
from ..base.parallel import in_parallel
from .base import bad_offset
from .s3_plan import CopiedPart, JoinedPart, Part, plan_parts
from .s3_requests import S3Requests, UploadedPart
from .s3_upload import Upload


class Concat:
    """Creates the chunk ``name``, whose key is ``prefix + name``; with ``replaces`` in place of the one
    there."""

    def __init__(
        self,
        requests: S3Requests,
        prefix: str,
        name: str,
        put_id: str,
        parallel: int,
        *,
        replaces: bool = False,
    ) -> None:
        self._requests = requests
        self._prefix = prefix
        self._name = name
        self._key = prefix + name
        self._put_id = put_id
        self._parallel = parallel
        self._replaces = replaces

    async def run(self, ranges: Sequence[ChunkRange]) -> None:
        """Raises what ``create_with_content`` raises, and ``BadChunkOffset`` for a range past its source's
        end."""
        # Before an upload is begun, which a range that is refused would leave to be aborted.
        await self._check_sources(ranges)
        parts = plan_parts(ranges)
        if not parts:
            await self._put([])
        # One request in place of three: an upload begins, sends and completes.
        elif len(parts) == 1 and isinstance(parts[0], JoinedPart):
            await self._put(await self._fetch(parts[0]))
        else:
            # Of a copied part not every service computes the checksum: some answer with that of the whole
            # source, and then refuse it.
            upload = Upload(
                self._requests,
                self._key,
                self._name,
                self._put_id,
                replaces=self._replaces,
                checksums=False,
            )
            await upload.run([partial(self._make_part, part) for part in parts], self._parallel)

    async def _put(self, data: list[bytes]) -> None:
        await self._requests.put(self._key, self._name, data, self._put_id, replaces=self._replaces)

    async def _check_sources(self, ranges: Sequence[ChunkRange]) -> None:
        names = list(dict.fromkeys(part.name for part in ranges))
        heads = await in_parallel(
            self._parallel, [partial(self._requests.head, self._prefix + name, name) for name in names]
        )
        lengths = {name: head.length for name, head in zip(names, heads, strict=True)}
        for part in ranges:
            if part.offset + part.length > lengths[part.name]:
                raise bad_offset(part.name, lengths[part.name], part.offset + part.length)

    async def _make_part(self, part: Part, upload_id: str, number: int) -> UploadedPart:
        if isinstance(part, CopiedPart):
            source = part.source
            at = self._prefix + source.name
            return await self._requests.copy_part(
                self._key, self._name, upload_id, number, at, source.offset, source.length
            )

        return await self._requests.put_part(
            self._key, self._name, upload_id, number, await self._fetch(part), checksum=False
        )

    async def _fetch(self, part: JoinedPart) -> list[bytes]:
        data = []
        for each in part.sources:
            found = await self._requests.get(self._prefix + each.name, each.name, each.offset, each.length)
            # The lengths were checked at the beginning: a source that is shorter now is being changed by
            # somebody.
            if len(found) != each.length:
                raise Unavailable(
                    f"chunk {each.name} became shorter while it was read: {len(found)} of {each.length} "
                    f"bytes at {each.offset}"
                )
            data.append(found)
        return data
