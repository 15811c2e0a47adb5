"""Large objects on S3 are put in parts: together they appear completely or not at all (rule S2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import attrs
import pytest

from support.s3 import s3_storage
from support.s3_server import Fault, S3Server
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import ChunkExists, OutcomeUnknown, Unavailable
from tierlog.storage_backends.chunks.s3 import S3ChunkStorage, _parts

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop, pytest.mark.usefixtures("reused_clients")]

MIB = 1 << 20
DATA = Random(1).randbytes(12 * MIB)
PIECES: list[Buffer] = [DATA[: 3 * MIB], memoryview(DATA)[3 * MIB : 11 * MIB], bytearray(DATA[11 * MIB :])]


@pytest.fixture
async def storage(server: S3Server) -> AsyncIterator[S3ChunkStorage]:
    storage = s3_storage(server.url, part_bytes=5 * MIB)
    await storage.open()
    yield storage
    await storage.close()


async def test_an_object_above_the_part_size_is_put_in_parts(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    assert await storage.create_with_content("large", PIECES) == len(DATA)
    assert server.objects() == {"store/large": DATA}
    assert (server.count("UploadPart"), server.count("PutObject")) == (3, 0)
    assert not server.uploads()


async def test_an_object_of_the_part_size_is_one_put(storage: S3ChunkStorage, server: S3Server) -> None:
    await storage.create_with_content("small", [DATA[: 5 * MIB]])
    assert (server.count("UploadPart"), server.count("PutObject")) == (0, 1)


async def test_s2_a_name_that_is_taken_is_refused_at_the_completion(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.put("store/large", b"taken")
    with pytest.raises(ChunkExists):
        await storage.create_with_content("large", PIECES)
    assert server.objects() == {"store/large": b"taken"}
    assert not server.uploads()


@pytest.mark.parametrize("operation", ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])
async def test_a_refused_request_leaves_nothing(
    storage: S3ChunkStorage, server: S3Server, operation: str
) -> None:
    server.fail(Fault(operation, refuse=(503, "SlowDown")))
    with pytest.raises(Unavailable):
        await storage.create_with_content("large", PIECES)
    assert server.objects() == {}
    assert not server.uploads()


@pytest.mark.parametrize(
    "fault",
    [
        Fault("CreateMultipartUpload", edit=lambda body: body.replace(b"UploadId", b"Upload")),
        Fault("UploadPart", hide="etag"),
    ],
)
async def test_a_malformed_answer_leaves_nothing(
    storage: S3ChunkStorage, server: S3Server, fault: Fault
) -> None:
    """An upload whose id it lacked stayed for a day."""
    server.fail(attrs.evolve(fault))
    with pytest.raises(Unavailable, match="it has no"):
        await storage.create_with_content("large", PIECES)
    assert server.objects() == {}
    assert not server.uploads()


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_reply_of_the_completion_is_an_unknown_outcome(
    storage: S3ChunkStorage, server: S3Server, applied: bool
) -> None:
    server.fail(Fault("CompleteMultipartUpload", applied=applied, drop=True))
    with pytest.raises(OutcomeUnknown):
        await storage.create_with_content("large", PIECES)
    assert len(server.objects()) == applied
    assert not server.uploads()


async def test_a_completion_that_was_sent_twice_on_its_way_finds_its_own_object(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.fail(Fault("CompleteMultipartUpload", applied=True, refuse=(412, "PreconditionFailed")))
    assert await storage.create_with_content("large", PIECES) == len(DATA)
    assert server.objects() == {"store/large": DATA}


def test_parts_have_one_size_and_copy_nothing() -> None:
    parts = _parts([b"abc", b"", b"defgh", b"i"], 4)
    assert [b"".join(part) for part in parts] == [b"abcd", b"efgh", b"i"]
    assert all(isinstance(view, memoryview) for part in parts for view in part)
