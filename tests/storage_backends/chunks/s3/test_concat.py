"""Concat on S3: long ranges are copied by the service, short ones joined, and an upload that fails leaves
nothing (rule S4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import anyio
import attrs
import pytest

from support.patience import scaled
from support.s3 import s3_storage
from support.s3_server import Fault, S3Server
from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.errors import BadChunkOffset, ChunkExists, OutcomeUnknown, Unavailable
from tierlog.storage_backends.chunks.s3 import S3ChunkStorage

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop, pytest.mark.usefixtures("reused_clients")]

MIB = 1 << 20
SOURCES = {
    name: Random(name).randbytes(size)
    for name, size in {"long": 13 * MIB, "short": 1000, "middle": 5 * MIB}.items()
}
RANGES = [
    ChunkRange("short", 1, 900),
    ChunkRange("long", 3, 12 * MIB),
    ChunkRange("middle", 0, 5 * MIB),
    ChunkRange("short", 0, 1000),
]
JOINED = b"".join(SOURCES[each.name][each.offset : each.offset + each.length] for each in RANGES)


@pytest.fixture
async def storage(server: S3Server) -> AsyncIterator[S3ChunkStorage]:
    for name, data in SOURCES.items():
        server.put(f"store/{name}", data)
    storage = s3_storage(server.url)
    await storage.open()
    yield storage
    await storage.close()


def names(server: S3Server) -> list[str]:
    return [key.removeprefix("store/") for key in server.objects()]


async def test_ranges_of_all_sizes_become_one_object(storage: S3ChunkStorage, server: S3Server) -> None:
    assert await storage.concat("joined", RANGES) == len(JOINED)
    assert server.objects()["store/joined"] == JOINED
    assert {name: server.objects()[f"store/{name}"] for name in SOURCES} == SOURCES
    assert server.count("UploadPartCopy") == 1
    assert server.count("UploadPart") == 3
    assert not server.uploads()


async def test_the_checksum_that_a_service_answers_of_a_copied_part_is_not_used(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    """It may be that of the whole source, here of an object of two parts."""
    answered = b"</ETag><ChecksumCRC32C>fLN3eQ==-2</ChecksumCRC32C>"
    server.fail(Fault("UploadPartCopy", edit=lambda body: body.replace(b"</ETag>", answered)))

    assert await storage.concat("joined", RANGES) == len(JOINED)
    assert server.objects()["store/joined"] == JOINED


async def test_a_malformed_answer_to_a_copy_leaves_nothing(storage: S3ChunkStorage, server: S3Server) -> None:
    server.fail(Fault("UploadPartCopy", edit=lambda body: body.replace(b"ETag", b"Tag")))
    with pytest.raises(Unavailable, match="no valid answer to upload_part_copy .* it has no 'ETag'"):
        await storage.concat("joined", RANGES)

    assert "joined" not in names(server)
    assert not server.uploads()


async def test_ranges_that_are_short_together_need_no_upload(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    await storage.concat("joined", [ChunkRange("short", 0, 500), ChunkRange("long", 7, 9)])

    assert server.objects()["store/joined"] == SOURCES["short"][:500] + SOURCES["long"][7:16]
    assert server.count("CreateMultipartUpload") == 0


async def test_ranges_without_a_byte_make_an_empty_object(storage: S3ChunkStorage, server: S3Server) -> None:
    assert await storage.concat("joined", [ChunkRange("short", 5, 0)]) == 0
    assert server.objects()["store/joined"] == b""


async def test_a_range_behind_the_end_is_refused_before_anything_is_begun(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    with pytest.raises(BadChunkOffset) as caught:
        await storage.concat("joined", [ChunkRange("long", 0, 6 * MIB), ChunkRange("short", 500, 501)])

    assert (caught.value.chunk, caught.value.expected, caught.value.given) == ("short", 1000, 1001)
    assert server.count("CreateMultipartUpload") == 0


@pytest.mark.parametrize(
    "operation", ["CreateMultipartUpload", "UploadPart", "UploadPartCopy", "GetObject", "HeadObject"]
)
@pytest.mark.parametrize("refuse", [(500, "InternalError"), (503, "SlowDown")])
async def test_a_part_that_fails_leaves_nothing(
    storage: S3ChunkStorage, server: S3Server, operation: str, refuse: tuple[int, str]
) -> None:
    """Nobody sees parts: whatever happened to one, nothing happened."""
    server.fail(Fault(operation, refuse=refuse))
    with pytest.raises(Unavailable):
        await storage.concat("joined", RANGES)

    assert sorted(names(server)) == sorted(SOURCES)
    assert not server.uploads()


async def test_a_name_that_is_taken_is_refused_and_the_upload_aborted(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    with pytest.raises(ChunkExists):
        await storage.concat("short", RANGES)

    assert server.objects()["store/short"] == SOURCES["short"]
    assert not server.uploads()


async def test_a_completion_that_was_sent_twice_on_its_way_finds_its_own_object(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.fail(Fault("CompleteMultipartUpload", applied=True, refuse=(412, "PreconditionFailed")))

    assert await storage.concat("joined", RANGES) == len(JOINED)
    assert server.objects()["store/joined"] == JOINED


@pytest.mark.parametrize("applied", [False, True])
async def test_a_lost_reply_of_the_completion_is_an_unknown_outcome(
    storage: S3ChunkStorage, server: S3Server, applied: bool
) -> None:
    server.fail(Fault("CompleteMultipartUpload", applied=applied, drop=True))
    with pytest.raises(OutcomeUnknown):
        await storage.concat("joined", RANGES)

    assert ("joined" in names(server)) is applied
    assert not server.uploads()


async def test_a_cancelled_concat_aborts_its_upload(storage: S3ChunkStorage, server: S3Server) -> None:
    server.fail(Fault("UploadPartCopy", stall=True))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(storage.concat, "joined", RANGES)
        with anyio.fail_after(scaled(30)):
            while server.count("UploadPartCopy") == 0:  # the server is in another thread
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()

    assert not server.uploads()
    assert sorted(names(server)) == sorted(SOURCES)


LOST = {
    "a lost answer": Fault("CreateMultipartUpload", applied=True, drop=True),
    "an internal error after the effect": Fault(
        "CreateMultipartUpload", applied=True, refuse=(500, "InternalError")
    ),
}


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
async def test_an_upload_whose_id_was_lost_is_found_and_aborted_at_once(
    storage: S3ChunkStorage, server: S3Server, fault: Fault
) -> None:
    server.page_size = 2
    others = [server.begin_upload(f"store/{name}") for name in ("a", "joined-too", "joined/a", "z")]
    server.fail(attrs.evolve(fault))
    with pytest.raises(Unavailable, match="no upload was begun for chunk joined"):
        await storage.concat("joined", RANGES)

    assert server.uploads() == others
    assert await storage.concat("joined", RANGES) == len(JOINED)


async def test_a_cancelled_concat_aborts_the_upload_that_it_was_beginning(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.fail(Fault("CreateMultipartUpload", applied=True, stall=True))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(storage.concat, "joined", RANGES)
        with anyio.fail_after(scaled(30)):
            while not server.uploads():  # the server is in another thread
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()

    assert not server.uploads()


@pytest.mark.parametrize("at_opening", [True, False])
async def test_an_abort_that_fails_does_not_end_the_sweep(server: S3Server, at_opening: bool) -> None:
    storage = s3_storage(server.url)
    if not at_opening:
        await storage.open()
    uploads = [server.begin_upload(f"store/{number}", age=1e9) for number in range(5)]
    server.fail(
        Fault("AbortMultipartUpload", key="store/0", refuse=(503, "SlowDown")),
        Fault("AbortMultipartUpload", key="3", drop=True),
    )
    if at_opening:
        await storage.open()
    else:
        with pytest.raises(Unavailable, match="2 of 5 uploads .* could not be aborted"):
            await storage.sweep()

    assert server.uploads() == [uploads[0], uploads[3]]
    assert storage.statistics().verbs["sweep"].failures == 1
    await storage.sweep()
    assert not server.uploads()
    await storage.close()


async def test_a_sweep_leaves_young_uploads_and_those_of_another_store(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    kept = [server.begin_upload("another-store/a", age=1e9), server.begin_upload("store/young")]
    server.begin_upload("store/old", age=1e9)
    await storage.sweep()

    assert server.uploads() == kept


async def test_an_upload_swept_by_another_process_is_no_error(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.begin_upload("store/old", age=1e9)
    server.fail(Fault("AbortMultipartUpload", applied=True, refuse=(404, "NoSuchUpload")))
    await storage.sweep()

    assert storage.statistics().verbs["sweep"].failures == 0


async def test_opening_aborts_the_old_uploads_of_dead_owners_and_no_others(server: S3Server) -> None:
    server.page_size = 2
    old = [server.begin_upload(f"store/{number}", age=1e9) for number in range(5)]
    elsewhere = server.begin_upload("another-store/a", age=1e9)
    first = s3_storage(server.url)
    await first.open()
    assert server.uploads() == [elsewhere]

    young = await first._requests.begin_upload("store/young", "young", "id")
    await first.close()
    await first.open()
    await first.close()
    assert server.uploads() == [elsewhere, young]
    assert set(old).isdisjoint(server.uploads())


async def test_an_upload_that_could_not_be_aborted_is_left_to_the_next_sweep(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.fail(
        Fault("UploadPart", refuse=(503, "SlowDown")), Fault("AbortMultipartUpload", refuse=(503, "SlowDown"))
    )
    with pytest.raises(Unavailable, match="slow down"):
        await storage.concat("joined", RANGES)
    assert len(server.uploads()) == 1

    later = s3_storage(server.url, upload_age=-1.0)
    await later.open()
    await later.close()
    assert not server.uploads()


ABORTS = {
    "a refused abort": Fault("AbortMultipartUpload", refuse=(503, "SlowDown")),
    "a lost abort": Fault("AbortMultipartUpload", drop=True),
    "an abort whose answer is lost": Fault("AbortMultipartUpload", applied=True, drop=True),
}


@pytest.mark.parametrize("fault", ABORTS.values(), ids=ABORTS)
async def test_an_upload_that_could_not_be_aborted_is_aborted_after_a_later_one(
    storage: S3ChunkStorage, server: S3Server, fault: Fault
) -> None:
    server.fail(Fault("UploadPart", refuse=(503, "SlowDown")), attrs.evolve(fault))
    with pytest.raises(Unavailable, match="slow down"):
        await storage.concat("joined", RANGES)

    assert await storage.concat("later", RANGES) == len(JOINED)
    assert not server.uploads()
    aborts = server.count("AbortMultipartUpload")
    assert await storage.concat("last", RANGES) == len(JOINED)
    assert server.count("AbortMultipartUpload") == aborts


async def test_an_upload_whose_id_was_lost_and_is_not_listed_is_aborted_after_a_later_one(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    other = server.begin_upload("store/other")
    server.fail(*map(attrs.evolve, [LOST["a lost answer"], Fault("ListMultipartUploads", drop=True)]))
    with pytest.raises(Unavailable, match="no upload was begun"):
        await storage.concat("joined", RANGES)
    assert len(server.uploads()) == 2

    assert await storage.concat("later", RANGES) == len(JOINED)
    assert server.uploads() == [other]


async def test_a_second_attempt_is_not_aborted_as_the_upload_that_the_first_one_left(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.fail(*map(attrs.evolve, [LOST["a lost answer"], Fault("ListMultipartUploads", drop=True)]))
    with pytest.raises(Unavailable, match="no upload was begun"):
        await storage.concat("joined", RANGES)
    server.fail(Fault("UploadPartCopy", stall=True))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(storage.concat, "joined", RANGES)
        with anyio.fail_after(scaled(30)):
            while server.count("UploadPartCopy") == 0:  # the server is in another thread
                await anyio.sleep(0.01)
        assert await storage.concat("later", RANGES) == len(JOINED)
        assert len(server.uploads()) == 2
        tasks.cancel_scope.cancel()

    assert await storage.concat("last", RANGES) == len(JOINED)
    assert not server.uploads()


async def test_an_abort_that_fails_again_fails_no_upload_and_is_tried_after_the_next(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    refused = Fault("AbortMultipartUpload", refuse=(503, "SlowDown"))
    server.fail(Fault("UploadPart", refuse=(503, "SlowDown")), refused, attrs.evolve(refused))
    with pytest.raises(Unavailable, match="slow down"):
        await storage.concat("joined", RANGES)

    assert await storage.concat("later", RANGES) == len(JOINED)
    assert len(server.uploads()) == 1
    assert await storage.concat("last", RANGES) == len(JOINED)
    assert not server.uploads()
