"""S3 with write offsets: chunks grow at their exact end, and an answer that never came leaves the outcome
unknown (rule S3)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from support.s3 import s3_storage
from support.s3_server import Fault, S3Server
from tierlog.storage_backends.base.errors import (
    ChunkReadOnly,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from tierlog.storage_backends.chunks.s3 import S3ChunkStorage

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop, pytest.mark.usefixtures("reused_clients")]


@pytest.fixture
async def storage(server: S3Server) -> AsyncIterator[S3ChunkStorage]:
    storage = s3_storage(server.url, append=True)
    await storage.open()
    await storage.create("a")
    yield storage
    await storage.close()


async def test_the_flag_follows_the_option(server: S3Server, storage: S3ChunkStorage) -> None:
    assert storage.capabilities.append
    assert not s3_storage(server.url).capabilities.append


@pytest.mark.parametrize("applied", [False, True])
async def test_a_lost_reply_of_an_append_is_checked_once_and_stays_unknown(
    storage: S3ChunkStorage, server: S3Server, applied: bool
) -> None:
    await storage.write("a", 0, [b"abc"])
    before = server.count("PutObject")
    server.fail(Fault("PutObject", applied=applied, drop=True))
    with pytest.raises(OutcomeUnknown):
        await storage.write("a", 3, [b"def"])

    # A retry of the HTTP client would be refused because of the bytes of the first attempt.
    assert server.count("PutObject") == before + 1
    assert (await storage.info("a")).length == (6 if applied else 3)


async def test_a_service_that_ignores_offsets_is_found_out_before_it_replaces_what_there_is(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    await storage.create_with_content("b", [b"acked"])
    server.fail(Fault("PutObject", without_header="x_amz_write_offset_bytes", times=100))
    with pytest.raises(Unsupported, match=r"remove `append` of \[s3\]"):
        await storage.write("b", 5, [b" and more"])
    assert await storage.read("b", 0, 100) == b"acked"

    server.heal()
    assert await storage.write("b", 5, [b" and more"]) == 14
    assert list(server.objects()) == ["store/a", "store/b"]


async def test_what_a_trial_without_an_answer_leaves_is_no_chunk(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.fail(Fault("PutObject", applied=True, drop=True))
    with pytest.raises(Unavailable, match="whether .* accepts appends is unknown"):
        await storage.write("a", 0, [b"abc"])

    assert await storage.write("a", 0, [b"abc"]) == 3
    assert len(server.objects()) == 2
    assert [each.name async for each in storage.list("")] == ["a"]


async def test_a_refused_append_left_the_chunk_as_it_was(storage: S3ChunkStorage, server: S3Server) -> None:
    server.fail(Fault("PutObject", refuse=(503, "SlowDown")))
    with pytest.raises(Unavailable):
        await storage.write("a", 0, [b"abc"])

    assert await storage.write("a", 0, [b"abc"]) == 3


async def test_a_chunk_that_takes_no_more_appends_is_not_called_unavailable(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    """S3: after ``Unavailable`` the same chunk would be appended to again, forever: an object has 10,000
    parts at most."""
    await storage.write("a", 0, [b"abc"])
    server.fail(Fault("PutObject", refuse=(400, "TooManyParts")))
    with pytest.raises(ChunkReadOnly, match="takes no more appends"):
        await storage.write("a", 3, [b"def"])

    assert await storage.read("a", 0, 100) == b"abc"


async def test_a_bucket_without_write_offsets_is_reported(storage: S3ChunkStorage, server: S3Server) -> None:
    server.fail(Fault("PutObject", refuse=(501, "NotImplemented")))
    with pytest.raises(Unsupported, match="does not support this use of put_object"):
        await storage.write("a", 0, [b"abc"])


async def test_read_only_is_kept_with_the_object(storage: S3ChunkStorage, server: S3Server) -> None:
    await storage.write("a", 0, [b"abc"])
    await storage.set_read_only("a", True)
    with pytest.raises(ChunkReadOnly):
        await storage.write("a", 3, [b"d"])

    other = s3_storage(server.url)
    await other.open()
    assert (await other.info("a")).read_only
    await other.close()
    await storage.set_read_only("a", False)
    assert not (await storage.info("a")).read_only
    assert await storage.write("a", 3, [b"d"]) == 4


def in_reverse(listed: bytes) -> bytes:
    entries = re.findall(rb"<Contents>.*?</Contents>", listed, re.DOTALL)
    return listed.replace(b"".join(entries), b"".join(entries[::-1])) if entries else listed


async def test_lists_are_in_name_order_whatever_the_bucket_gives(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    """Directory buckets list in any order, and know only prefixes that end with a slash."""
    for name in ("x/b", "x/a-2", "x/a-1", "y/a"):
        await storage.create(name)
    server.fail(Fault("ListObjectsV2", times=9, edit=in_reverse))
    server.seen.clear()

    assert [info.name async for info in storage.list("x/a")] == ["x/a-1", "x/a-2"]
    assert [info.name async for info in storage.list("")] == ["a", "x/a-1", "x/a-2", "x/b", "y/a"]
    assert [seen.key for seen in server.seen] == ["store/x/", "store/"]
