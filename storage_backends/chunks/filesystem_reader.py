"""``FileSystemChunkReader``: the chunks below a root, for somebody who must not change them.

Owns: the refusal of every change. Does not own: how chunks are found and read (``FileSystemChunkStorage``
does that). ``open`` touches nothing: no root is made, no mark is set, and above all no temporary name of a
living owner is swept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import anyio.lowlevel

from ..base.checksum import Buffer
from ..base.chunk_storage import Capabilities
from ..base.errors import Unsupported
from .filesystem import FileSystemChunkStorage


class FileSystemChunkReader(FileSystemChunkStorage):
    """Reads, infos and lists; every change raises ``Unsupported``."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=False, concat=False)

    async def _open(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> NoReturn:
        self._refuse(name)

    async def _delete(self, name: str) -> NoReturn:
        self._refuse(name)

    async def _set_read_only(self, name: str, read_only: bool) -> NoReturn:
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise Unsupported(f"chunk {name} cannot be changed: this storage was opened for reading")
