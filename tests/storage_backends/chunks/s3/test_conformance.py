"""S3 chunks keep the contract: on our own server by small pages; with ``--long`` with write offsets too, and on moto's server."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.s3 import s3_storage
from tierlog.storage_backends.chunks.s3 import S3ChunkStorage
from tierlog.testing.chunk_conformance import ChunkStorageConformance
from tierlog.testing.s3_server import LocalS3Server


def prefix_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}/"


class OnOurServer(ChunkStorageConformance):
    append = False

    @pytest.fixture(autouse=True)
    def _served(self, server: LocalS3Server) -> None:
        server.page_size = 3
        self.url = server.url

    def make(self, folder: Path) -> S3ChunkStorage:
        return s3_storage(self.url, prefix_of(folder), append=self.append)


@pytest.mark.one_loop
class TestS3(OnOurServer):
    pass


@pytest.mark.long
class TestS3WithWriteOffsets(OnOurServer):
    append = True


@pytest.mark.long
class TestS3OnMoto(ChunkStorageConformance):
    @pytest.fixture(autouse=True)
    def _served(self, moto_url: str) -> None:
        self.url = moto_url

    def make(self, folder: Path) -> S3ChunkStorage:
        return s3_storage(self.url, prefix_of(folder))
