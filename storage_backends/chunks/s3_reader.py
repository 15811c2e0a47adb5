"""``S3ChunkReader``: the chunks of a bucket, for somebody who must not change them.

Owns: the refusal of every change. Does not own: how chunks are found and read (``S3ChunkStorage`` does that).
``open`` looks whether the bucket is there, and sweeps nothing of a living owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ..base.checksum import Buffer
from ..base.chunk_storage import Capabilities
from ..base.errors import Unsupported
from .s3 import S3ChunkStorage


class S3ChunkReader(S3ChunkStorage):
    """Reads, infos and lists; every change raises ``Unsupported``."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=False, concat=False, reads_are_durable=True)

    async def _sweep(self) -> None:
        return

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> NoReturn:
        self._refuse(name)

    async def _delete(self, name: str) -> NoReturn:
        self._refuse(name)

    async def _set_read_only(self, name: str, read_only: bool) -> NoReturn:
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise Unsupported(f"chunk {name} cannot be changed: this storage was opened for reading")
