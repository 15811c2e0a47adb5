"""The requests that chunk storage makes of an S3 service, through aiobotocore: one method each, with a time
limit and a check that the answer matches the request. Errors are those of the chunk contract
(``s3_errors.py``).

Nothing here or below retries: botocore's retries are off, and so is that of aiohttp on a kept connection that
turns out to be closed, because the first attempt may have taken effect. The storage actor is the only layer
that retries (rule A12).
"""

from __future__ import annotations

import asyncio
import io
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from email.utils import parsedate_to_datetime
from functools import cache, partial
from typing import Any, Protocol

import aiohttp
import anyio
import attrs
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from botocore.loaders import create_loader

from ..base.checksum import Buffer, crc32c
from ..base.errors import ChunkNotFound, ChunkReadOnly, InvalidArgument, TierlogError, Unavailable
from ..base.object_store import StoredObject
from .s3_errors import IS_FOLDER, RequestInfo, at_opening, code_of, mapped, status_of
from .s3_loop import Call, RequestLoop, T, request_loop
from .s3_request_counts import S3RequestCounts

_ID = "tierlog-put"
"""The metadata entry with the id of the call that made an object."""
_NEW = {"IfNoneMatch": "*"}
"""The condition that the object is new."""
_READ_ONLY = "tierlog-read-only"
"""The metadata entry of an object that refuses writes."""


@attrs.frozen(kw_only=True)
class S3Options:
    """Where the service is and how it is used. Times in seconds. Credentials come from the environment, as
    for any AWS client."""

    endpoint: str = ""
    """The service's URL. Empty: AWS_ENDPOINT_URL_S3, or AWS."""
    region: str = ""
    """Empty: AWS_REGION, AWS_DEFAULT_REGION or the profile's."""
    append: bool = False
    """The bucket accepts puts at a write offset, as directory buckets do: chunks can grow."""
    connections: int = 32
    connect_timeout: float = 5.0
    read_timeout: float = 20.0
    """The longest silence of the service."""
    request_timeout: float = 50.0
    """The longest time for one request, its body included."""
    upload_age: float = 86_400.0
    """``open`` and ``sweep`` abort multipart uploads older than this by the service's clock: dead owners left
    them."""
    parallel: int = 4
    """Concurrent requests of one concat, and of all puts in parts together."""
    part_bytes: int = 8 << 20
    """An object of more bytes is put in parts of this size, at least 5 MiB."""


class S3Client(Protocol):
    """The used part of aiobotocore's client, which has no published types."""

    async def put_object(self, **request: Any) -> Mapping[str, Any]: ...
    async def get_object(self, **request: Any) -> Mapping[str, Any]: ...
    async def head_object(self, **request: Any) -> Mapping[str, Any]: ...
    async def copy_object(self, **request: Any) -> Mapping[str, Any]: ...
    async def delete_object(self, **request: Any) -> Mapping[str, Any]: ...
    async def list_objects_v2(self, **request: Any) -> Mapping[str, Any]: ...
    async def create_multipart_upload(self, **request: Any) -> Mapping[str, Any]: ...
    async def upload_part(self, **request: Any) -> Mapping[str, Any]: ...
    async def upload_part_copy(self, **request: Any) -> Mapping[str, Any]: ...
    async def complete_multipart_upload(self, **request: Any) -> Mapping[str, Any]: ...
    async def abort_multipart_upload(self, **request: Any) -> Mapping[str, Any]: ...
    async def list_multipart_uploads(self, **request: Any) -> Mapping[str, Any]: ...

    @property
    def meta(self) -> Any:
        """Where the client finds the service, among others."""


class _Request(aiohttp.ClientRequest):
    async def write_bytes(self, *arguments: Any, **options: Any) -> None:
        # If a connection is closed just before it is used, aiohttp raises this in a task that nobody waits
        # for, which would reach the loop's exception handler. Who waits for the answer gets an error anyway.
        with suppress(aiohttp.ClientConnectionResetError):
            await super().write_bytes(*arguments, **options)


class _Session(AIOHTTPSession):  # type: ignore[misc]  # its class is of any type
    """aiobotocore's HTTP session, without aiohttp's own retry. Uses three private names
    (``tests/storage_backends/chunks/s3/test_private_names.py``)."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False
        session._request_class = _Request
        return session


@attrs.frozen
class ObjectHead:
    length: int
    put_id: str
    """The id of the call that made it; empty if it was not made here."""
    read_only: bool
    tag: str


@attrs.frozen
class UploadedPart:
    tag: str
    checksum: str
    """The part's CRC32C in base64, which the service has verified; empty in an upload without checksums."""


@attrs.frozen
class ListedObject:
    key: str
    length: int


@attrs.frozen
class LeftUpload:
    key: str
    upload_id: str
    age: float
    """Seconds, by the service's clock."""


@cache
def _service_models() -> Any:
    """The description of S3 that clients are built from: hundreds of kilobytes of JSON, read once per
    process."""
    return create_loader()


def make_client(options: S3Options) -> AbstractAsyncContextManager[S3Client]:
    """A client that is open inside ``async with``, on asyncio."""
    config = AioConfig(
        http_session_cls=_Session,
        # botocore's own is built anew for each request, twice, which takes a fifth of its processor time.
        user_agent="tierlog",
        # A12: retries live in the storage actor, which knows what may be repeated.
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        max_pool_connections=options.connections,
        # Uploads carry our own CRC32C; reads are verified against the store's own checksums (rule S5).
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # An IP address has no subdomains.
        s3={"addressing_style": "path"} if options.endpoint else {},
    )
    session = get_session()
    session.register_component("data_loader", _service_models())
    made: AbstractAsyncContextManager[S3Client] = session.create_client(
        "s3", endpoint_url=options.endpoint or None, region_name=options.region or None, config=config
    )
    return made


class S3Requests:
    """One client of one bucket. ``name`` is the chunk's name, for messages."""

    def __init__(self, bucket: str, options: S3Options, counts: S3RequestCounts | None = None) -> None:
        self._bucket = bucket
        self._options = options
        self._counts = counts or S3RequestCounts()
        self._endpoint = options.endpoint or "the S3 service"
        self.left_uploads: set[tuple[str, str]] = set()
        """Keys and ids of this owner's uploads that ended, and could not be aborted."""
        self._loop: RequestLoop | None = None
        self._context: AbstractAsyncContextManager[S3Client] | None = None
        self._client: S3Client | None = None

    async def open(self, prefix: str) -> None:
        """Make the client and check that the bucket exists and may be listed. Raises ``ConfigError`` if the
        configuration must be corrected."""
        self._loop = request_loop()
        await self._loop.open()
        try:
            await self._loop.run(partial(self._open, prefix))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connections, even when the caller is cancelled."""
        # Taken first, so that a second close, or a concurrent one, finds nothing to do.
        loop, self._loop = self._loop, None
        if loop is not None:
            with anyio.CancelScope(shield=True):
                try:
                    await loop.run(self._close)
                finally:
                    await loop.close()

    async def _open(self, prefix: str) -> None:
        request = RequestInfo("list_objects_v2", self._bucket, self._endpoint, prefix)
        try:
            context = make_client(self._options)
            self._client = await context.__aenter__()
            # Not before: what was not entered cannot be left.
            self._context = context
            # Of the environment, or AWS: messages name what was asked, which may not be what was meant.
            self._endpoint = str(self._client.meta.endpoint_url)
            if "@" in self._endpoint or not self._endpoint.startswith(("http://", "https://")):
                raise ValueError(f"Invalid endpoint: {self._endpoint}")
            request = attrs.evolve(request, endpoint=self._endpoint)
            self._counts.count(request.operation)
            await self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=1)
        except Exception as error:
            problem = at_opening(error, request)
            if problem is not None:
                raise problem from error

    async def _close(self) -> None:
        context, self._context, self._client = self._context, None, None
        if context is not None:
            await context.__aexit__(None, None, None)

    # --- objects ---------------------------------------------------------------------------------

    async def put(
        self, key: str, name: str, data: Sequence[Buffer], put_id: str, *, replaces: bool = False
    ) -> None:
        """Create the object, or raise ``ChunkExists``; with ``replaces`` it takes the place of that one."""
        # S2: the condition makes a put exclusive, and the id shows whose put it was.
        await self._ask(
            "put_object",
            key,
            name,
            _nothing,
            visible=True,
            **_verified(_body(data)),
            **({} if replaces else _NEW),
            Metadata={_ID: put_id},
            ContentType=_CONTENT,
        )

    async def put_if(self, key: str, name: str, data: Sequence[Buffer], version: str) -> str:
        """Create the object or, with ``version``, replace the one with this entity tag; returns the new
        one's. Raises ``ChunkExists`` if the condition does not hold, ``ChunkNotFound`` if there is nothing to
        replace."""
        return await self._ask(
            "put_object",
            key,
            name,
            lambda answer: str(answer["ETag"]),
            visible=True,
            **_verified(_body(data)),
            **({"IfMatch": version} if version else _NEW),
            ContentType=_CONTENT,
        )

    async def append(self, key: str, name: str, offset: int, data: Sequence[Buffer]) -> bool:
        """Append ``data`` to the object of ``offset`` bytes; False if it has another length.

        Raises ``ChunkReadOnly`` once the service accepts no more appends to this object, usually after
        10,000.
        """
        try:
            await self._ask(
                "put_object",
                key,
                name,
                _nothing,
                visible=True,
                **_verified(_body(data)),
                WriteOffsetBytes=offset,
            )
        except TierlogError as error:
            code = code_of(error.__cause__ or error)
            if code == "InvalidWriteOffset":
                return False
            if code == "TooManyParts":
                raise ChunkReadOnly(
                    f"chunk {name} takes no more appends at {self._endpoint}; begin another", chunk=name
                ) from error
            raise
        return True

    async def get(self, key: str, name: str, offset: int, size: int) -> bytes:
        """The existing bytes of ``offset .. offset + size``. ``size`` is not 0."""
        return await self._run(
            partial(self._get, key, offset, size), self._request_info("get_object", key, name, visible=False)
        )

    async def get_start(self, key: str, name: str, size: int) -> StoredObject:
        """The object with its first ``size`` bytes. ``size`` is not 0."""
        return await self._run(
            partial(self._get_start, key, size), self._request_info("get_object", key, name, visible=False)
        )

    async def head(self, key: str, name: str) -> ObjectHead:
        try:
            return await self._ask("head_object", key, name, _head)
        except Unavailable as error:
            if status_of(error.__cause__ or error) != 404:
                raise
            # An answer to HEAD has no body, which would tell a missing object from a missing bucket. An
            # answer to GET has one. It is sent each time: the bucket may have been deleted since.
            await self.get(key, name, 0, 1)
            raise ChunkNotFound(
                f"there was no chunk {name} at the time of the request", chunk=name
            ) from error

    async def set_read_only(self, key: str, name: str, head: ObjectHead, read_only: bool) -> None:
        """Replace the metadata of the object that ``head`` saw, by having the service copy it onto itself."""
        await self._ask(
            "copy_object",
            key,
            name,
            _nothing,
            CopySource={"Bucket": self._bucket, "Key": key},
            # Without it a concurrent append would be lost: the copy would be of the object as it was before.
            CopySourceIfMatch=head.tag,
            MetadataDirective="REPLACE",
            Metadata={_ID: head.put_id, **({_READ_ONLY: "yes"} if read_only else {})},
            ContentType=_CONTENT,
        )

    async def delete(self, key: str, name: str) -> None:
        await self._ask("delete_object", key, name, _nothing, visible=True)

    async def list_pages(self, prefix: str, after: str = "") -> AsyncGenerator[list[ListedObject], None]:
        """The objects below ``prefix`` behind the key ``after``, page by page."""
        more: dict[str, Any] = {"StartAfter": after} if after else {}
        tokens, keys = set[str](), set[str]()
        while True:
            found, token = await self._ask("list_objects_v2", "", "", _page, Prefix=prefix, **more)
            # The order of keys shows nothing: directory buckets have none.
            if found:
                self._check_new(found[0].key, keys, prefix)
            yield found
            if token is None:
                return

            self._check_new(token, tokens, prefix)
            more = {"ContinuationToken": token}

    # --- multipart -------------------------------------------------------------------------------

    async def begin_upload(self, key: str, name: str, put_id: str, *, checksums: bool = True) -> str:
        """The new upload's id. With ``checksums`` every part has one. After ``OutcomeUnknown`` there may be
        an upload whose id was lost (``uploads`` shows it)."""
        return await self._ask(
            "create_multipart_upload",
            key,
            name,
            lambda answer: str(answer["UploadId"]),
            visible=True,
            Metadata={_ID: put_id},
            ContentType=_CONTENT,
            **({"ChecksumAlgorithm": "CRC32C"} if checksums else {}),
        )

    async def put_part(
        self,
        key: str,
        name: str,
        upload_id: str,
        number: int,
        data: Sequence[Buffer],
        *,
        checksum: bool = True,
    ) -> UploadedPart:
        """Without ``checksum`` the signature has the part's SHA-256 in its place, which costs more."""
        body = _verified(_body(data))
        if not checksum:
            del body["ChecksumCRC32C"]
        return await self._ask(
            "upload_part",
            key,
            name,
            lambda answer: UploadedPart(str(answer["ETag"]), body.get("ChecksumCRC32C", "")),
            UploadId=upload_id,
            PartNumber=number,
            **body,
        )

    async def copy_part(
        self, key: str, name: str, upload_id: str, number: int, source: str, offset: int, length: int
    ) -> UploadedPart:
        """A part that the service copies from a range of the object ``source``, in an upload without
        checksums."""
        return await self._ask(
            "upload_part_copy",
            key,
            name,
            _copied_part,
            UploadId=upload_id,
            PartNumber=number,
            CopySource={"Bucket": self._bucket, "Key": source},
            CopySourceRange=f"bytes={offset}-{offset + length - 1}",
        )

    async def complete_upload(
        self,
        key: str,
        name: str,
        upload_id: str,
        uploaded: Sequence[UploadedPart],
        *,
        replaces: bool = False,
    ) -> None:
        """Create the object from the parts, or raise ``ChunkExists``; with ``replaces`` it takes the place of
        that one."""
        parts = [
            {"PartNumber": number, "ETag": part.tag}
            | ({"ChecksumCRC32C": part.checksum} if part.checksum else {})
            for number, part in enumerate(uploaded, 1)
        ]
        await self._ask(
            "complete_multipart_upload",
            key,
            name,
            _nothing,
            visible=True,
            UploadId=upload_id,
            MultipartUpload={"Parts": parts},
            # S2: the condition is on the completion. Until then the key has no object, so two uploads of it
            # may run.
            **({} if replaces else _NEW),
        )

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """End the upload. It is not an error if it has ended already."""
        try:
            await self._ask("abort_multipart_upload", key, "", _nothing, UploadId=upload_id)
        except Unavailable as error:
            if code_of(error.__cause__ or error) != "NoSuchUpload":
                raise

    async def uploads(self, prefix: str) -> list[LeftUpload]:
        """The open uploads below ``prefix``."""
        found: list[LeftUpload] = []
        more: dict[str, Any] = {}
        markers = set[str]()
        while True:
            page, more = await self._ask(
                "list_multipart_uploads", "", "", _uploads_page, Prefix=prefix, **more
            )
            found += page
            if not more:
                return found

            self._check_new(repr(more), markers, prefix)

    def _check_new(self, page: str, seen: set[str], prefix: str) -> None:
        """Raises ``Unavailable`` if the list has had this page before: it would have no end (rule A13)."""
        if page in seen:
            raise Unavailable(
                f"{self._endpoint} repeats a page of the list of {self._bucket}/{prefix}, which would never "
                f"end; report it to the makers of the service, or use another one"
            )
        seen.add(page)

    # --- asking ----------------------------------------------------------------------------------

    async def _ask(
        self,
        operation: str,
        key: str,
        name: str,
        read: Callable[[Mapping[str, Any]], T],
        *,
        visible: bool = False,
        **request: Any,
    ) -> T:
        """What ``read`` finds in the answer. An answer that lacks something is no valid one, so what follows
        from it depends on the request, as without an answer."""
        if key:
            request["Key"] = key
        ask = partial(getattr(self._client, operation), Bucket=self._bucket, **request)

        async def call() -> T:
            return read(await ask())

        try:
            return await self._run(call, self._request_info(operation, key, name, visible=visible))
        except InvalidArgument as error:
            if code_of(error.__cause__ or error) in IS_FOLDER and not await self._is_folder(key):
                raise Unavailable(
                    f"{self._endpoint} removed a folder while s3://{self._bucket}/{key} was put into it, "
                    f"and stored nothing"
                ) from error
            raise

    async def _is_folder(self, key: str) -> bool:
        """Whether a service on a file system has it as a folder of objects. It answers the same when it
        removes the folder of a deleted object while another one is put there."""
        return await self._ask(
            "list_objects_v2",
            "",
            "",
            lambda answer: bool(answer.get("Contents")),
            Prefix=f"{key}/",
            MaxKeys=1,
        )

    async def _run(self, call: Call[T], request: RequestInfo) -> T:
        assert self._loop is not None, "the storage is open"
        self._counts.count(request.operation)
        try:
            return await self._loop.run(partial(self._limited, call))
        except TierlogError:
            raise
        except Exception as error:
            raise mapped(error, request) from error

    async def _limited(self, call: Call[T]) -> T:
        # Of the whole request: the client's own limits are for each silence, and a service that sends a byte
        # now and then never reaches them.
        async with asyncio.timeout(self._options.request_timeout):
            return await call()

    async def _get(self, key: str, offset: int, size: int) -> bytes:
        try:
            return (await self._get_range(key, offset, size))[0]
        except Exception as error:
            # The range begins at the object's end or behind it, which is an empty read by the contract.
            if status_of(error) == 416:
                return b""
            raise

    async def _get_start(self, key: str, size: int) -> StoredObject:
        try:
            data, answer = await self._get_range(key, 0, size)
        except Exception as error:
            # An empty object has no range, and this answer has no version: it is fetched whole.
            if status_of(error) != 416:
                raise
            return await self._get_empty(key)
        return StoredObject(data, int(answer["ContentRange"].rpartition("/")[2]), str(answer["ETag"]))

    async def _get_empty(self, key: str) -> StoredObject:
        """Raises ``Unavailable`` if it is not empty any more: the caller asks again."""
        assert self._client is not None
        answer = await self._client.get_object(Bucket=self._bucket, Key=key)
        async with answer["Body"] as body:
            data = await _read_up_to(body, 1)
        if data or answer["ContentLength"]:
            raise Unavailable(f"s3://{self._bucket}/{key} was empty, and was replaced meanwhile")
        return StoredObject(b"", 0, str(answer["ETag"]))

    async def _get_range(self, key: str, offset: int, size: int) -> tuple[bytes, Mapping[str, Any]]:
        """The bytes, and the answer's other fields."""
        assert self._client is not None
        answer = await self._client.get_object(
            Bucket=self._bucket, Key=key, Range=f"bytes={offset}-{offset + size - 1}"
        )
        async with answer["Body"] as body:
            data = await _read_up_to(body, size + 1)
        _check_range(str(answer.get("ContentRange", "")), offset, size, len(data))
        return data, answer

    def _request_info(self, operation: str, key: str, name: str, *, visible: bool) -> RequestInfo:
        return RequestInfo(operation, self._bucket, self._endpoint, key, name, visible)


_CONTENT = "application/octet-stream"
_LENGTH = re.compile(r"[0-9]{1,19}")


def _nothing(_answer: Mapping[str, Any]) -> None:
    """For requests whose answer says only that they were carried out."""


def _head(answer: Mapping[str, Any]) -> ObjectHead:
    metadata = answer.get("Metadata", {})
    return ObjectHead(
        int(answer["ContentLength"]), str(metadata.get(_ID, "")), _READ_ONLY in metadata, str(answer["ETag"])
    )


def _page(answer: Mapping[str, Any]) -> tuple[list[ListedObject], str | None]:
    """The objects of a page, and the token of the next one, if there is one."""
    found = [ListedObject(str(each["Key"]), int(each["Size"])) for each in answer.get("Contents", ())]
    return found, str(answer["NextContinuationToken"]) if answer.get("IsTruncated") else None


def _copied_part(answer: Mapping[str, Any]) -> UploadedPart:
    return UploadedPart(str(answer["CopyPartResult"]["ETag"]), "")


def _uploads_page(answer: Mapping[str, Any]) -> tuple[list[LeftUpload], dict[str, Any]]:
    """The uploads of a page, and the parameters of the request for the next one, if there is one."""
    # By the service's clock on both sides: this machine's may be wrong by hours, and an upload of a living
    # owner must not be aborted.
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    found = [
        LeftUpload(str(each["Key"]), str(each["UploadId"]), (now - each["Initiated"]).total_seconds())
        for each in answer.get("Uploads", ())
    ]
    if not answer.get("IsTruncated"):
        return found, {}

    return found, {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}


def _body(data: Sequence[Buffer]) -> bytes:
    return data[0] if len(data) == 1 and isinstance(data[0], bytes) else b"".join(data)


def _verified(body: bytes) -> dict[str, Any]:
    """The parameters of a body with the checksum that the service verifies before it stores the body."""
    return {
        "Body": io.BytesIO(body),
        "ContentLength": len(body),
        "ChecksumCRC32C": b64encode(crc32c(body).to_bytes(4)).decode(),
    }


async def _read_up_to(body: Any, size: int) -> bytes:
    """What the body has, up to ``size`` bytes: a service or a proxy that ignores ranges sends the whole
    object, which memory may not hold."""
    pieces = []
    while size and (piece := await body.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _check_range(content_range: str, offset: int, size: int, received: int) -> None:
    """Raise ``Unavailable`` unless the answer is the requested range, short only at the object's end."""
    span, _, total = content_range.removeprefix("bytes ").partition("/")
    expected = f"{offset}-{offset + received - 1}"
    if span != expected or not _LENGTH.fullmatch(total) or received != min(size, int(total) - offset):
        raise Unavailable(
            f"{received} bytes at {offset} were received where {size} were requested; the service calls them "
            f"{content_range!r}"
        )
