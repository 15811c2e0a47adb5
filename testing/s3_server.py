"""``LocalS3Server``: a small S3 server on loopback that fails as it is told to, for tests and benchmarks of
chunk storages.

Owns: the subset of the REST interface that chunk storage needs, the script of faults, and the thread that
serves. Does not own: what objects are (``s3_state.py``), nor signatures: of a request's credentials only the
access key is looked at.

::

    with LocalS3Server() as server:
        server.add_bucket("chunks")
        server.fail(Fault("PutObject", refuse=(503, "SlowDown"), times=2))
        ...  # an S3 client at server.url, with server.environment() as its AWS_... variables

``python -m tierlog.testing.s3_server`` serves one bucket, ``chunks``, until it is told to end, and prints its
URL first.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from argparse import ArgumentParser
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import attrs

from ..storage_backends.base.checksum import crc32c
from .s3_http import READ_BYTES_MAX, Answer, Request, read_request, write_answer
from .s3_state import S3Bucket, S3Object, S3Refusal

ACCESS_KEY, SECRET_KEY, REGION = "tierlog-access-key", "tierlog-secret-key", "us-east-1"
_META = "x-amz-meta-"
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@attrs.define
class Fault:
    """What happens to the next ``times`` requests of one operation, such as ``PutObject``, whose key contains
    ``key``.

    ``applied`` says whether the request takes effect before its answer goes wrong, as when a reply is lost.
    """

    operation: str
    key: str = ""
    times: int = 1
    applied: bool = False
    refuse: tuple[int, str] | None = None
    """Answer with this status and code."""
    drop: bool = False
    """Close the connection without an answer."""
    stall: bool = False
    """Never answer; the connection stays open."""
    body_bytes: int | None = None
    """Close the connection after so many bytes of the body."""
    rate: float = 0
    """Bytes of the body a second."""

    def takes(self, operation: str, key: str) -> bool:
        if self.times <= 0 or self.operation != operation or self.key not in key:
            return False

        self.times -= 1
        return True


@attrs.frozen
class Seen:
    """One request, as the log keeps it."""

    operation: str
    key: str
    status: int
    """0 if it was not answered."""


class LocalS3Server:
    """See the module's head. Attributes may be changed while it serves."""

    def __init__(self, *, page_size: int = 1000, port: int = 0) -> None:
        self.buckets: dict[str, S3Bucket] = {}
        self.page_size = page_size
        self.seen: list[Seen] = []
        self._faults: list[Fault] = []
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="local-s3-server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @staticmethod
    def environment() -> dict[str, str]:
        """The variables with which an AWS client finds the right credentials."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
        }

    def add_bucket(self, name: str, **options: Any) -> S3Bucket:
        return self.buckets.setdefault(name, S3Bucket(**options))

    def fail(self, *faults: Fault) -> None:
        """Have these faults happen, each in its turn."""
        self._faults += faults

    def forget_faults(self) -> None:
        self._faults.clear()

    def count(self, operation: str) -> int:
        """How many requests of that operation were seen."""
        return sum(seen.operation == operation for seen in self.seen)

    # --- serving ---------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        connections: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._converse(reader, writer))
            connections.add(task)
            task.add_done_callback(connections.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", self._port, limit=READ_BYTES_MAX)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await read_request(reader, writer):
                if not await self._answer(request, writer):
                    break
        except ConnectionError:
            return  # The client went away while it was answered.
        finally:
            writer.transport.abort()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        bucket, _, key = request.path.lstrip("/").partition("/")
        operation = _operation_of(request, key)
        fault = next((fault for fault in self._faults if fault.takes(operation, key)), None)
        answer = (
            self._perform(operation, bucket, key, request)
            if fault is None or _is_applied(fault)
            else Answer(500)
        )
        if fault is not None and fault.refuse is not None:
            answer = _error(S3Refusal(*fault.refuse, "as the test wants it"), request.path)
        answered = fault is None or not (fault.drop or fault.stall)
        self.seen.append(Seen(operation, key, answer.status if answered else 0))
        if fault is not None and fault.stall:
            await self._stop.wait()
        if not answered:
            return False

        answer = attrs.evolve(
            answer, headers={**answer.headers, "Date": formatdate(time.time(), usegmt=True)}
        )
        await write_answer(
            writer,
            request,
            answer,
            body_bytes=fault.body_bytes if fault is not None else None,
            rate=fault.rate if fault is not None else 0,
        )
        return fault is None or fault.body_bytes is None

    def _perform(self, operation: str, bucket: str, key: str, request: Request) -> Answer:
        try:
            if f"Credential={ACCESS_KEY}/" not in request.headers.get("authorization", ""):
                raise S3Refusal(
                    403,
                    "InvalidAccessKeyId",
                    "The AWS Access Key Id you provided does not exist in our records.",
                )
            if operation == "CreateBucket":
                self.add_bucket(bucket)
                return Answer(200)
            if bucket not in self.buckets:
                raise S3Refusal(404, "NoSuchBucket", "The specified bucket does not exist")

            return _HANDLERS[operation](self, self.buckets[bucket], key, request)
        except S3Refusal as refusal:
            return _error(refusal, request.path)

    # --- operations ------------------------------------------------------------------------------

    def _head_bucket(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        return Answer(200)

    def _put_object(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        made = _object_of(request)
        offset = request.headers.get("x-amz-write-offset-bytes")
        if offset is None:
            bucket.put(key, made, if_none_match=_is_conditional(request))
        else:
            bucket.append(key, int(offset), made)
        return Answer(200, headers={"ETag": bucket.find(key).etag})

    def _get_object(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        found = bucket.find(key)
        headers = _headers_of(found)
        span = request.headers.get("range")
        if span is None:
            return Answer(200, found.data, headers)

        start, end = _span_of(span)
        length = len(found.data)
        if start >= length:
            raise S3Refusal(416, "InvalidRange", "The requested range is not satisfiable")

        end = min(end, length)
        return Answer(
            206,
            memoryview(found.data)[start:end],
            {**headers, "Content-Range": f"bytes {start}-{end - 1}/{length}"},
        )

    def _head_object(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        found = bucket.find(key)
        return Answer(200, headers={**_headers_of(found), "Content-Length": str(len(found.data))})

    def _delete_object(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        bucket.delete(key)
        return Answer(204)

    def _list_objects(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        query = request.query
        count = min(self.page_size, int(query.get("max-keys", "1000")))
        page = bucket.page(
            query.get("prefix", ""), query.get("continuation-token", query.get("start-after", "")), count
        )
        shown = quote if query.get("encoding-type") == "url" else escape
        parts = [
            f"<IsTruncated>{'true' if page.more_after else 'false'}</IsTruncated><KeyCount>{len(page.items)}</KeyCount>"
        ]
        parts += [
            f"<Contents><Key>{shown(name)}</Key><Size>{len(found.data)}</Size><LastModified>{_iso(found.modified)}</LastModified>"
            f"<ETag>{escape(found.etag)}</ETag></Contents>"
            for name, found in page.items
        ]
        if page.more_after:
            parts.append(f"<NextContinuationToken>{escape(page.more_after)}</NextContinuationToken>")
        if shown is quote:
            parts.append("<EncodingType>url</EncodingType>")
        return _document("ListBucketResult", *parts)

    def _create_upload(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        upload_id = bucket.begin_upload(key, _metadata_of(request), time.time())
        return _document(
            "InitiateMultipartUploadResult", f"<Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>"
        )

    def _upload_part(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        part = _object_of(request)
        bucket.put_part(request.query["uploadId"], int(request.query["partNumber"]), part)
        return Answer(200, headers={"ETag": part.etag})

    def _copy_object(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        source = self._source_of(request)
        replaced = request.headers.get("x-amz-metadata-directive", "") == "REPLACE"
        made = attrs.evolve(
            source, metadata=_metadata_of(request) if replaced else source.metadata, modified=time.time()
        )
        bucket.put(key, made, if_none_match=_is_conditional(request))
        return _document(
            "CopyObjectResult",
            f"<ETag>{escape(made.etag)}</ETag><LastModified>{_iso(made.modified)}</LastModified>",
        )

    def _source_of(self, request: Request) -> S3Object:
        """The object that a copy names, if it is the one that its condition means."""
        bucket, _, key = unquote(request.headers["x-amz-copy-source"]).lstrip("/").partition("/")
        if bucket not in self.buckets:
            raise S3Refusal(404, "NoSuchBucket", "The specified bucket does not exist")

        source = self.buckets[bucket].find(key)
        if request.headers.get("x-amz-copy-source-if-match", source.etag) != source.etag:
            raise S3Refusal(
                412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"
            )

        return source

    def _copy_part(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        source = self._source_of(request)
        span = request.headers.get("x-amz-copy-source-range")
        part = bucket.copy_part(
            request.query["uploadId"],
            int(request.query["partNumber"]),
            source,
            _span_of(span) if span else None,
        )
        return _document(
            "CopyPartResult",
            f"<ETag>{escape(part.etag)}</ETag><LastModified>{_iso(part.modified)}</LastModified>",
        )

    def _complete_upload(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        root = ET.fromstring(request.body)
        space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
        listed = [
            (int(part.findtext(f"{space}PartNumber", "0")), part.findtext(f"{space}ETag", ""))
            for part in root.iter(f"{space}Part")
        ]
        made = bucket.complete_upload(
            request.query["uploadId"], listed, time.time(), if_none_match=_is_conditional(request)
        )
        return _document(
            "CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key><ETag>{escape(made.etag)}</ETag>"
        )

    def _abort_upload(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        bucket.abort_upload(request.query["uploadId"])
        return Answer(204)

    def _list_uploads(self, bucket: S3Bucket, key: str, request: Request) -> Answer:
        prefix = request.query.get("prefix", "")
        after = (request.query.get("key-marker", ""), request.query.get("upload-id-marker", ""))
        waiting = sorted(
            (upload.key, upload_id)
            for upload_id, upload in bucket.uploads.items()
            if upload.key.startswith(prefix)
        )
        waiting = [each for each in waiting if each > after]
        shown, rest = waiting[: self.page_size], waiting[self.page_size :]
        parts = [f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated>"]
        if rest:
            parts.append(
                f"<NextKeyMarker>{escape(shown[-1][0])}</NextKeyMarker><NextUploadIdMarker>{shown[-1][1]}</NextUploadIdMarker>"
            )
        parts += [
            f"<Upload><Key>{escape(name)}</Key><UploadId>{upload_id}</UploadId>"
            f"<Initiated>{_iso(bucket.uploads[upload_id].initiated)}</Initiated></Upload>"
            for name, upload_id in shown
        ]
        return _document("ListMultipartUploadsResult", *parts)


_HANDLERS: dict[str, Callable[[LocalS3Server, S3Bucket, str, Request], Answer]] = {
    "HeadBucket": LocalS3Server._head_bucket,
    "PutObject": LocalS3Server._put_object,
    "GetObject": LocalS3Server._get_object,
    "HeadObject": LocalS3Server._head_object,
    "DeleteObject": LocalS3Server._delete_object,
    "CopyObject": LocalS3Server._copy_object,
    "ListObjectsV2": LocalS3Server._list_objects,
    "CreateMultipartUpload": LocalS3Server._create_upload,
    "UploadPart": LocalS3Server._upload_part,
    "UploadPartCopy": LocalS3Server._copy_part,
    "CompleteMultipartUpload": LocalS3Server._complete_upload,
    "AbortMultipartUpload": LocalS3Server._abort_upload,
    "ListMultipartUploads": LocalS3Server._list_uploads,
}


def _operation_of(request: Request, key: str) -> str:
    """The name that the S3 documentation gives to a request."""
    method, query = request.method, request.query
    if not key:
        if method == "GET":
            return "ListMultipartUploads" if "uploads" in query else "ListObjectsV2"
        return {"HEAD": "HeadBucket", "PUT": "CreateBucket"}.get(method, f"{method} of a bucket")

    if "uploadId" in query:
        part = "UploadPartCopy" if "x-amz-copy-source" in request.headers else "UploadPart"
        return {"PUT": part, "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}[method]

    return {
        "GET": "GetObject",
        "HEAD": "HeadObject",
        "PUT": "CopyObject" if "x-amz-copy-source" in request.headers else "PutObject",
        "DELETE": "DeleteObject",
        "POST": "CreateMultipartUpload",
    }[method]


def _is_applied(fault: Fault) -> bool:
    """Whether the request takes effect: where a fault only disturbs the answer's body it must."""
    return fault.applied or not (fault.refuse or fault.drop or fault.stall)


def _is_conditional(request: Request) -> bool:
    return request.headers.get("if-none-match") == "*"


def _object_of(request: Request) -> S3Object:
    """The request's body as an object, its checksum compared."""
    told = request.headers.get("x-amz-checksum-crc32c")
    if told is not None and told != b64encode(crc32c(request.body).to_bytes(4)).decode():
        raise S3Refusal(400, "BadDigest", "The CRC32C you specified did not match the calculated checksum.")

    return S3Object(request.body, _metadata_of(request), time.time())


def _metadata_of(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith(_META)}


def _headers_of(found: S3Object) -> dict[str, str]:
    return {
        **found.metadata,
        "ETag": found.etag,
        "Last-Modified": formatdate(found.modified, usegmt=True),
        "Accept-Ranges": "bytes",
    }


def _span_of(text: str) -> tuple[int, int]:
    """The half-open range of ``bytes=first-last``."""
    first, _, last = text.removeprefix("bytes=").partition("-")
    return int(first), int(last) + 1


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def _document(root: str, *parts: str) -> Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{_NAMESPACE}">{"".join(parts)}</{root}>'
    return Answer(200, text.encode(), {"Content-Type": "application/xml"})


def _error(refusal: S3Refusal, path: str) -> Answer:
    text = (
        f'<?xml version="1.0" '
        f'encoding="UTF-8"?>\n<Error><Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message>'
        f"<Resource>{escape(path)}</Resource></Error>"
    )
    return Answer(refusal.status, text.encode(), {"Content-Type": "application/xml"})


def main(arguments: Sequence[str] = ()) -> None:
    """Serve the bucket ``chunks`` until standard input ends."""
    parser = ArgumentParser(
        prog="python -m tierlog.testing.s3_server",
        description="Serve the bucket `chunks` on loopback, in memory, until standard input ends. It prints "
        "its URL first. "
        f"AWS_ACCESS_KEY_ID is {ACCESS_KEY!r}, AWS_SECRET_ACCESS_KEY anything.",
    )
    parser.add_argument("port", nargs="?", type=int, default=0, help="default: a free one")
    with LocalS3Server(port=parser.parse_args(arguments).port) as server:
        server.add_bucket("chunks")
        print(server.url, flush=True)  # noqa: T201 - whoever starts it reads it
        with suppress(KeyboardInterrupt):
            sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
