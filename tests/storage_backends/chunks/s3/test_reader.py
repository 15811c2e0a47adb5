"""A reader of a bucket sees all and changes nothing."""

from __future__ import annotations

import pytest

from support.s3 import numbered_world, s3_storage
from support.s3_server import BUCKET, S3Server
from tierlog.storage_backends.base.chunk_storage import ChunkInfo, ChunkRange
from tierlog.storage_backends.base.errors import Unsupported
from tierlog.storage_backends.chunks.s3 import S3ChunkReader
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.chunks.s3_requests import S3Options

pytestmark = pytest.mark.anyio


async def test_a_reader_reads_and_refuses_every_change(server: S3Server) -> None:
    writer = s3_storage(server.url)
    await writer.open()
    await writer.create_with_content("a", [b"abc"])
    await writer.close()
    reader = S3ChunkReader(
        S3Location(BUCKET, "store/"), S3Options(endpoint=server.url, append=True), numbered_world()
    )
    await reader.open()
    server.seen.clear()

    assert await reader.read("a", 1, 9) == b"bc"
    assert [info async for info in reader.list("")] == [ChunkInfo("a", 3)]
    changes = [
        reader.create("b"),
        reader.create_with_content("b", [b"x"]),
        reader.write("a", 3, [b"x"]),
        reader.delete("a"),
        reader.concat("b", [ChunkRange("a", 0, 1)]),
        reader.set_read_only("a", True),
    ]
    for change in changes:
        with pytest.raises(Unsupported):
            await change
    await reader.sweep()
    assert {seen.operation for seen in server.seen} == {"GetObject", "ListObjectsV2"}
    await reader.close()
