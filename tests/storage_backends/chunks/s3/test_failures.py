"""Each way in which a service can fail, as an error that says whether something happened and what to do; and
nothing is asked twice."""

from __future__ import annotations

import gc
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import attrs
import pytest
from aiohttp.http_writer import StreamWriter

from support.patience import ATTEMPTS, scaled, succeeds
from support.s3 import s3_storage
from support.s3_server import BUCKET, Fault, S3Server
from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    ConfigError,
    InvalidArgument,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
    Unsupported,
)
from tierlog.storage_backends.chunks.s3 import S3ChunkStorage

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

DATA = bytes(range(256)) * 4


@pytest.fixture
async def storage(server: S3Server) -> AsyncIterator[S3ChunkStorage]:
    storage = s3_storage(server.url)
    await storage.open()
    await storage.create_with_content("there", [DATA])
    server.seen.clear()
    yield storage
    await storage.close()


Verb = Callable[[S3ChunkStorage], Awaitable[object]]


async def create(storage: S3ChunkStorage) -> object:
    return await storage.create_with_content("new", [DATA])


async def read(storage: S3ChunkStorage) -> object:
    return await storage.read("there", 0, len(DATA))


async def delete(storage: S3ChunkStorage) -> object:
    await storage.delete("there")
    return None


async def info(storage: S3ChunkStorage) -> object:
    return await storage.info("there")


async def list_all(storage: S3ChunkStorage) -> object:
    return [found async for found in storage.list("")]


REFUSALS = [
    ((503, "SlowDown"), Unavailable, "asks to slow down"),
    ((429, "TooManyRequests"), Unavailable, "asks to slow down"),
    ((409, "ConditionalRequestConflict"), Unavailable, "another conditional write"),
    ((409, "OperationAborted"), Unavailable, "another operation"),
    ((409, "ObjectParentIsFile"), InvalidArgument, "part of its name is an object"),
    ((400, "XMinioParentIsObject"), InvalidArgument, "part of its name is an object"),
    ((409, "SomethingNew"), Unavailable, "refuses put_object .*SomethingNew"),
    ((403, "AccessDenied"), Unavailable, "allow it in the policy"),
    ((403, "InvalidAccessKeyId"), Unavailable, "set AWS_ACCESS_KEY_ID"),
    ((403, "SignatureDoesNotMatch"), Unavailable, "secret key does not belong"),
    ((403, "RequestTimeTooSkewed"), Unavailable, "set it"),
    ((400, "ExpiredToken"), Unavailable, "renew them"),
    ((400, "RequestTimeout"), Unavailable, "too slowly"),
    ((400, "BadDigest"), Unavailable, "stored nothing"),
    ((400, "XAmzContentSHA256Mismatch"), Unavailable, "stored nothing"),
    ((400, "TokenRefreshRequired"), Unavailable, "renew them"),
    ((400, "KeyTooLongError"), Unsupported, "refuses put_object .*KeyTooLongError.* each time"),
    ((400, "SomethingNew"), Unsupported, "refuses put_object .*SomethingNew"),
    ((404, "XAdminUserNotFound"), Unavailable, "set AWS_ACCESS_KEY_ID"),
    ((404, "SomethingNew"), Unavailable, "refuses put_object .*SomethingNew"),
    ((404, "NoSuchBucket"), Unavailable, "there is no bucket chunks at http://127.0.0.1"),
    ((301, "PermanentRedirect"), Unavailable, "set `region` of"),
    ((507, "XMinioStorageFull"), StorageFull, "make room there"),
    ((403, "QuotaExceeded"), StorageFull, "raise the quota"),
    ((501, "NotImplemented"), Unsupported, "does not support this use of put_object"),
    ((412, "PreconditionFailed"), ChunkExists, "chunk new exists already"),
    ((500, "InternalError"), OutcomeUnknown, "may have been carried out"),
    ((502, "BadGateway"), OutcomeUnknown, "may have been carried out"),
    ((503, "ServiceUnavailable"), OutcomeUnknown, "may have been carried out"),
]


@pytest.mark.parametrize(
    ("refuse", "kind", "message"), REFUSALS, ids=[f"{status}-{code}" for (status, code), _, _ in REFUSALS]
)
async def test_a_refusal_explains_what_happened_and_what_to_do(
    storage: S3ChunkStorage, server: S3Server, refuse: tuple[int, str], kind: type[TierlogError], message: str
) -> None:
    server.fail(Fault("PutObject", refuse=refuse))
    with pytest.raises(kind, match=message) as caught:
        await create(storage)

    assert type(caught.value) is kind
    assert server.count("PutObject") == 1
    # The bucket is as it was, and the storage goes on.
    assert not await storage.exists("new")
    assert await create(storage) == len(DATA)


@pytest.mark.parametrize("code", ["ExistingObjectIsDirectory", "XMinioObjectExistsAsDirectory"])
async def test_a_name_that_is_a_folder_is_distinguished_from_one_whose_folder_is_being_removed(
    storage: S3ChunkStorage, server: S3Server, code: str
) -> None:
    server.fail(Fault("PutObject", refuse=(409, code), times=2))
    with pytest.raises(Unavailable, match="removed a folder while"):
        await create(storage)

    server.put("store/new/below", b"x")
    with pytest.raises(InvalidArgument, match="it is a folder of objects"):
        await create(storage)


async def test_a_connection_that_closes_before_a_request_is_sent_is_nobody_elses_error(
    storage: S3ChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's exception handler, which fails this test, sees what a task raised that nobody waits for."""
    send_headers = StreamWriter.send_headers

    def send_to_closing(self: StreamWriter) -> None:
        assert self.transport is not None
        self.transport.close()
        send_headers(self)

    with monkeypatch.context() as patch:
        patch.setattr(StreamWriter, "send_headers", send_to_closing)
        with pytest.raises(OutcomeUnknown):
            await create(storage)
    gc.collect()
    await anyio.lowlevel.checkpoint()
    assert not await storage.exists("new")


@pytest.mark.parametrize(
    ("verb", "operation"), [(read, "GetObject"), (info, "HeadObject"), (list_all, "ListObjectsV2")]
)
@pytest.mark.parametrize(
    "fault",
    [Fault("", refuse=(500, "InternalError")), Fault("", refuse=(503, "SlowDown")), Fault("", drop=True)],
)
async def test_a_failed_read_changes_nothing(
    storage: S3ChunkStorage, server: S3Server, verb: Verb, operation: str, fault: Fault
) -> None:
    server.fail(attrs.evolve(fault, operation=operation))
    with pytest.raises(Unavailable):
        await verb(storage)

    assert server.count(operation) == 1
    await verb(storage)


async def test_a_refused_read_names_its_cause(storage: S3ChunkStorage, server: S3Server) -> None:
    server.fail(Fault("GetObject", refuse=(403, "AccessDenied")))
    with pytest.raises(
        Unavailable, match=re.escape(f"may not do get_object on s3://{BUCKET}/store/there; allow it")
    ):
        await read(storage)

    server.fail(Fault("GetObject", refuse=(404, "NoSuchKey")))
    with pytest.raises(ChunkNotFound):
        await read(storage)


async def test_a_failure_without_a_code_is_named_by_its_status_with_what_to_do(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    """A HEAD has no body that could contain one; its client takes the status for the code."""
    server.fail(Fault("HeadObject", refuse=(503, "SlowDown")))
    with pytest.raises(Unavailable, match=r"failed in head_object .*\(503: .*\); try again later") as caught:
        await info(storage)

    assert "503 503" not in str(caught.value)


async def test_a_silent_service_is_named_with_what_to_do(server: S3Server) -> None:
    storage = await hasty(server.url, read_timeout=0.5)
    for verb, operation in ((read, "GetObject"), (info, "HeadObject"), (list_all, "ListObjectsV2")):
        server.fail(Fault(operation, stall=True))
        with pytest.raises(Unavailable, match="none came in time; check that it runs") as caught:
            await verb(storage)

        assert server.url in str(caught.value)
        assert "TimeoutError" not in str(caught.value)
    await storage.close()


async def look(storage: S3ChunkStorage) -> object:
    return await storage.exists("there")


async def read_nothing(storage: S3ChunkStorage) -> object:
    return await storage.read("there", 0, 0)


async def mark(storage: S3ChunkStorage) -> object:
    await storage.set_read_only("there", True)
    return None


@pytest.mark.parametrize("verb", [look, info, read, read_nothing, delete, mark, list_all, create])
async def test_a_bucket_that_is_gone_is_unavailable_and_never_a_missing_chunk(
    storage: S3ChunkStorage, server: S3Server, verb: Verb
) -> None:
    """Its ``HEAD`` says a bare 404 of both. A caller that took that for a missing chunk would lose segments
    and their garbage."""
    server.remove_bucket()
    with pytest.raises(Unavailable, match="there is no bucket chunks at http://127.0.0.1"):
        await verb(storage)

    server.add_bucket()
    await create(storage)


async def test_a_missing_chunk_costs_one_request_more_than_one_that_is_there(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    assert await storage.exists("there")
    assert len(server.seen) == 1
    assert not await storage.exists("nowhere")
    assert [seen.operation for seen in server.seen[1:]] == ["HeadObject", "GetObject"]


async def test_a_missing_chunk_is_not_reported_while_the_bucket_is_unreachable(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.fail(Fault("GetObject", drop=True), Fault("GetObject", refuse=(403, "AccessDenied")))
    for message in ("no valid answer", "allow it in the policy"):
        with pytest.raises(Unavailable, match=message):
            await storage.exists("nowhere")

    assert not await storage.exists("nowhere")


async def test_a_chunk_created_during_the_lookup_counts_as_missing(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.fail(Fault("HeadObject", refuse=(404, "NotFound")))
    with pytest.raises(ChunkNotFound, match="at the time of the request"):
        await info(storage)


@pytest.mark.parametrize("body_bytes", [0, 1, 1000])
async def test_a_truncated_body_is_never_taken_for_a_short_chunk(
    storage: S3ChunkStorage, server: S3Server, body_bytes: int
) -> None:
    server.fail(Fault("GetObject", body_bytes=body_bytes))
    with pytest.raises(Unavailable, match="no valid answer"):
        await read(storage)

    assert await read(storage) == DATA


async def hasty(url: str, **limits: Any) -> S3ChunkStorage:
    """An open storage, which waits little: what a machine that stands still cuts short is tried again."""
    for _ in range(ATTEMPTS):
        storage = s3_storage(url, **limits)
        with suppress(Unavailable):
            await storage.open()
            with suppress(Unavailable):
                # Kept connections are those on which an HTTP client retries.
                await storage.exists("warm")
                return storage
            await storage.close()
    pytest.fail("no opening was in time")


async def test_a_slow_body_is_waited_for_within_the_limit(storage: S3ChunkStorage, server: S3Server) -> None:
    limit = 0.6
    impatient = await hasty(server.url, request_timeout=limit)
    server.fail(Fault("GetObject", rate=10_000), Fault("GetObject", rate=len(DATA) / (1.7 * limit)))

    assert await read(storage) == DATA
    with pytest.raises(Unavailable, match="none came in time; check that it runs"):
        await read(impatient)

    async def is_read() -> bool:
        with suppress(Unavailable):
            return await read(impatient) == DATA
        return False

    assert await succeeds(is_read)
    await impatient.close()


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("how", ["drop", "stall"])
async def test_a_lost_reply_of_a_put_is_an_unknown_outcome(
    storage: S3ChunkStorage, server: S3Server, how: str, applied: bool
) -> None:
    writing = await hasty(server.url, read_timeout=0.5 if how == "stall" else 20.0)
    server.fail(Fault("PutObject", applied=applied, drop=how == "drop", stall=how == "stall"))
    with pytest.raises(OutcomeUnknown, match="no valid answer to put_object"):
        await create(writing)

    assert server.count("PutObject") == 1
    assert await storage.exists("new") is applied
    await writing.close()


@pytest.mark.parametrize("applied", [False, True])
async def test_a_lost_reply_of_a_delete_is_an_unknown_outcome(
    storage: S3ChunkStorage, server: S3Server, applied: bool
) -> None:
    server.fail(Fault("DeleteObject", applied=applied, drop=True))
    with pytest.raises(OutcomeUnknown):
        await delete(storage)

    assert server.count("DeleteObject") == 1
    assert await storage.exists("there") is not applied


async def test_a_put_that_was_sent_twice_on_its_way_finds_its_own_object(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    """A proxy that lost a reply sends the request again: the service refuses the second one because of the
    first."""
    server.fail(Fault("PutObject", applied=True, refuse=(412, "PreconditionFailed")))

    assert await create(storage) == len(DATA)
    assert await storage.read("new", 0, 10_000) == DATA


async def test_the_object_of_another_put_is_not_ours_whatever_it_holds(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    other = s3_storage(server.url)
    await other.open()
    await create(other)
    await other.close()
    with pytest.raises(ChunkExists):
        await create(storage)


async def test_whether_an_object_is_ours_stays_unknown_while_it_cannot_be_seen(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    server.fail(
        Fault("PutObject", applied=True, refuse=(412, "PreconditionFailed")),
        Fault("HeadObject", refuse=(503, "SlowDown")),
    )
    with pytest.raises(OutcomeUnknown, match="is unknown"):
        await create(storage)


async def test_a_service_that_is_gone_cannot_have_done_anything(server: S3Server) -> None:
    with S3Server() as leaving:
        storage = s3_storage(leaving.url)
        await storage.open()
    with pytest.raises(Unavailable):
        await info(storage)  # finds that the kept connection is closed
    for verb in (create, read, delete, info):
        with pytest.raises(Unavailable, match="cannot be reached.*check that it runs"):
            await verb(storage)
    await storage.close()


# --- opening ------------------------------------------------------------------------------------


async def test_opening_reports_a_missing_bucket(server: S3Server) -> None:
    server.remove_bucket()
    with pytest.raises(ConfigError, match=r"there is no bucket chunks at http://127\.0\.0\.1:\d+; make it"):
        await s3_storage(server.url).open()


async def test_opening_reports_an_unknown_access_key(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    with pytest.raises(ConfigError, match="does not know the access key; set AWS_ACCESS_KEY_ID"):
        await s3_storage(server.url).open()


async def test_opening_reports_missing_credentials(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="there are no usable credentials"):
        await s3_storage(server.url).open()


async def test_opening_reports_a_wrong_secret_key(server: S3Server) -> None:
    server.fail(Fault("ListObjectsV2", refuse=(403, "SignatureDoesNotMatch")))
    with pytest.raises(ConfigError, match="the secret key does not belong to the access key"):
        await s3_storage(server.url).open()


@pytest.mark.parametrize(
    "url, reason",
    [
        ("http://127.0.0.1:9", "Connection refused"),
        ("http://nowhere.invalid:9", "[^:]*not known|.*resolution"),
    ],
)
async def test_opening_reports_an_unreachable_service_with_the_systems_reason(url: str, reason: str) -> None:
    with pytest.raises(Unavailable, match=f"^{url} cannot be reached: ({reason}); check that it runs"):
        await s3_storage(url).open()


async def test_a_storage_that_could_not_be_opened_can_be_opened_later(server: S3Server) -> None:
    server.remove_bucket()
    storage = s3_storage(server.url)
    with pytest.raises(ConfigError):
        await storage.open()
    server.add_bucket()
    await storage.open()

    assert await create(storage) == len(DATA)
    await storage.close()


async def test_a_busy_service_does_not_keep_a_storage_from_being_opened(server: S3Server) -> None:
    """It is there, and the calls are tried again."""
    server.fail(
        Fault("ListObjectsV2", refuse=(503, "SlowDown")),
        Fault("ListMultipartUploads", refuse=(500, "InternalError")),
    )
    storage = s3_storage(server.url)
    await storage.open()

    assert await create(storage) == len(DATA)
    await storage.close()


async def test_a_cancelled_opening_gives_its_connections_back(server: S3Server) -> None:
    server.fail(Fault("ListObjectsV2", stall=True))
    storage = s3_storage(server.url)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(storage.open)
        with anyio.fail_after(scaled(30)):
            while not server.count("ListObjectsV2"):
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()

    # What is left open complains when it is collected, and warnings are errors here.
    del storage
    gc.collect()


# --- answers that are not what was asked for ----------------------------------------------------


async def test_a_service_that_ignores_ranges_is_detected(storage: S3ChunkStorage, server: S3Server) -> None:
    server.fail(Fault("GetObject", without_header="range"))
    with pytest.raises(Unavailable, match="were requested"):
        await storage.read("there", 10, 20)


async def test_of_a_service_that_ignores_ranges_no_whole_object_is_read(
    storage: S3ChunkStorage, server: S3Server
) -> None:
    await storage.create_with_content("large", [bytes(1 << 20)])
    server.fail(Fault("GetObject", without_header="range", rate=1 << 14))
    with anyio.fail_after(scaled(10)), pytest.raises(Unavailable, match="were requested"):
        await storage.read("large", 0, 20)


def changed(pattern: bytes, by: bytes = b"") -> Callable[[bytes], bytes]:
    def edit(body: bytes) -> bytes:
        edited, count = re.subn(pattern, by, body)
        assert count
        return edited

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (changed(b"<Size>.*?</Size>"), "it has no 'Size'"),
        (changed(b"<Size>.*?</Size>", b"<Size>many</Size>"), "many"),
        (changed(b"<Key>.*?</Key>"), "it has no 'Key'"),
        (changed(b"<NextContinuationToken>.*?</NextContinuationToken>"), "it has no 'NextContinuationToken'"),
    ],
)
async def test_a_malformed_list_is_unavailable(
    storage: S3ChunkStorage, server: S3Server, edit: Callable[[bytes], bytes], message: str
) -> None:
    """It was an unknown outcome, which a read does not have."""
    server.put("store/another", b"x")
    server.page_size = 1
    server.fail(Fault("ListObjectsV2", times=2, edit=edit))
    for verb in (list_all, S3ChunkStorage.used_space):
        with pytest.raises(Unavailable, match=f"no valid answer to list_objects_v2 .*{message}"):
            await verb(storage)

    assert len(await storage._all("")) == 2


@pytest.mark.parametrize("verb", [info, look, read_nothing, delete, mark])
@pytest.mark.parametrize(("hide", "field"), [("etag", "ETag"), ("content-length", "ContentLength")])
async def test_a_malformed_answer_about_an_object_is_unavailable_and_changes_nothing(
    storage: S3ChunkStorage, server: S3Server, verb: Verb, hide: str, field: str
) -> None:
    server.fail(Fault("HeadObject", hide=hide))
    with pytest.raises(Unavailable, match=f"no valid answer to head_object .* it has no '{field}'"):
        await verb(storage)

    assert [seen.operation for seen in server.seen] == ["HeadObject"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("", hide="date"),
        Fault("", edit=changed(b"<Initiated>.*?</Initiated>")),
        Fault("", edit=changed(b"<UploadId>.*?</UploadId>")),
        Fault("", edit=changed(b"<NextKeyMarker>.*?</NextKeyMarker>")),
    ],
)
async def test_a_malformed_list_of_uploads_does_not_keep_a_storage_from_being_opened(
    server: S3Server, fault: Fault
) -> None:
    for number in range(2):
        server.begin_upload(f"store/{number}")
    server.page_size = 1
    server.fail(attrs.evolve(fault, operation="ListMultipartUploads", times=2))
    storage = s3_storage(server.url)
    await storage.open()
    with pytest.raises(Unavailable, match="no valid answer to list_multipart_uploads"):
        await storage.sweep()

    await storage.sweep()
    await storage.close()


async def test_an_unexpected_error_of_a_read_is_no_unknown_outcome(
    storage: S3ChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def head(key: str, name: str) -> object:
        raise RuntimeError(key)

    monkeypatch.setattr(storage._requests, "head", head)
    for verb in (info, look, read_nothing):
        with pytest.raises(Unavailable, match="RuntimeError"):
            await verb(storage)
    with pytest.raises(OutcomeUnknown, match="RuntimeError"):
        await delete(storage)


async def test_ranges_of_a_missing_source_name_it(storage: S3ChunkStorage) -> None:
    with pytest.raises(ChunkNotFound) as caught:
        await storage.concat("new", [ChunkRange("there", 0, 1), ChunkRange("nowhere", 0, 1)])

    assert caught.value.chunk == "nowhere"


# --- pages -----------------------------------------------------------------------------------------


_CONTENTS = re.compile(rb"<Contents>.*</Contents>", re.DOTALL)


def the_first_page_again(answers: list[bytes]) -> Callable[[bytes], bytes]:
    def edit(body: bytes) -> bytes:
        answers.append(body)
        return answers[0]

    return edit


def the_first_page_with_another_token(answers: list[bytes]) -> Callable[[bytes], bytes]:
    def edit(body: bytes) -> bytes:
        answers.append(body)
        first = _CONTENTS.search(answers[0])
        assert first is not None
        return _CONTENTS.sub(first[0], body)

    return edit


def an_empty_page_again(answers: list[bytes]) -> Callable[[bytes], bytes]:
    def edit(body: bytes) -> bytes:
        answers.append(body)
        return _CONTENTS.sub(b"", answers[0])

    return edit


@pytest.mark.parametrize(
    "repeat", [the_first_page_again, the_first_page_with_another_token, an_empty_page_again]
)
@pytest.mark.parametrize("append", [False, True])
async def test_a_list_that_repeats_a_page_ends(
    server: S3Server, repeat: Callable[[list[bytes]], Callable[[bytes], bytes]], append: bool
) -> None:
    """A13: it was followed without end."""
    storage = s3_storage(server.url, append=append)
    await storage.open()
    for number in range(5):
        server.put(f"store/{number}", b"x")
    server.page_size = 2
    answers: list[bytes] = []
    server.fail(Fault("ListObjectsV2", times=20, edit=repeat(answers)))
    with pytest.raises(Unavailable, match="repeats a page of the list of .*use another"):
        await list_all(storage)
    assert len(answers) == 2
    with pytest.raises(Unavailable, match="repeats a page"):
        await storage.used_space()
    await storage.close()


async def test_a_list_of_uploads_that_repeats_a_page_ends(server: S3Server) -> None:
    """No sweep ended."""
    storage = s3_storage(server.url)
    await storage.open()
    for number in range(5):
        server.begin_upload(f"store/{number}")
    server.page_size = 2
    answers: list[bytes] = []
    server.fail(Fault("ListMultipartUploads", times=20, edit=the_first_page_again(answers)))
    with pytest.raises(Unavailable, match="repeats a page"):
        await storage.sweep()
    assert len(answers) == 2
    await storage.close()
