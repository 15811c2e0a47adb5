"""The S3 server of the tests: moto behind an HTTP front of our own that injects faults.

moto decides what buckets, objects and uploads are. The front adds what moto lacks and chunk storage relies
on: writes at an offset, the age of uploads, small pages, refused credentials, checksums that are required and
compared; and it fails as a test asks, down to a connection that is cut in the middle of a body.

::

    with S3Server() as server:
        server.fail(Fault("PutObject", refuse=(503, "SlowDown"), times=2))
        ...  # an S3 client at server.url, with AWS_ENVIRONMENT as its variables
"""

from __future__ import annotations

import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

import attrs
from crc32c import crc32c

BUCKET = "chunks"
ACCESS_KEY = "tierlog-access-key"
AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": "tierlog-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@attrs.define
class Answer:
    status: int
    headers: list[tuple[str, str]] = attrs.field(factory=list)
    body: bytes = b""


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
    """Close the connection after this many bytes of the body."""
    rate: float = 0
    """Bytes of the body per second."""
    without_header: str = ""
    """Perform the request as if this header had not been sent."""
    edit: Callable[[bytes], bytes] | None = None
    """Changes the answer's body."""
    hide: str = ""
    """Answer without this header."""

    def matches(self, operation: str, key: str) -> bool:
        return self.times > 0 and self.operation == operation and self.key in key

    @property
    def performs(self) -> bool:
        """Whether the request takes effect; where a fault only disturbs the answer's body it does."""
        return self.applied or not (self.refuse or self.drop or self.stall)


@attrs.frozen
class Seen:
    """One request. ``key`` is the prefix of a list; ``status`` is 0 if there was no answer."""

    operation: str
    key: str
    status: int


class S3Server:
    """One bucket, ``BUCKET``, on a free port of loopback. ``page_size`` bounds lists."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import create_backend_app  # slow to import
        from moto.s3.models import s3_backends

        self.page_size = 1000
        self.seen: list[Seen] = []
        self.stopped = threading.Event()
        self._app: Any = create_backend_app("s3")
        self._state: Any = s3_backends["123456789012"]["aws"]
        self._begun: dict[str, float] = {}
        """When each upload was begun, in seconds of the wall clock."""
        self._with_sums: set[str] = set()
        """The uploads whose parts have checksums."""
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _Connection)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self.reset()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopped.set()
        self._http.shutdown()
        self._http.close_connections()
        self._http.server_close()
        self._state.reset()

    # --- for tests -------------------------------------------------------------------------------

    def reset(self) -> None:
        """An empty bucket, no faults, nothing seen."""
        with self._lock:
            self._state.reset()
            self._begun.clear()
            self._with_sums.clear()
            self._faults.clear()
            self.seen.clear()
            self.page_size = 1000
            self.add_bucket()

    def add_bucket(self) -> None:
        self._state.create_bucket(BUCKET, "us-east-1")

    def remove_bucket(self) -> None:
        """With all that is in it."""
        self._state.reset()

    def fail(self, *faults: Fault) -> None:
        """Have these faults happen, each in its turn."""
        self._faults += faults

    def heal(self) -> None:
        """Let no fault happen any more."""
        with self._lock:
            self._faults.clear()

    def count(self, operation: str) -> int:
        """How many requests of that operation were seen."""
        return sum(seen.operation == operation for seen in self.seen)

    def objects(self) -> dict[str, bytes]:
        """The bytes of each object by key, in key order."""
        with self._lock:
            return {key: found.value for key, found in sorted(self._bucket().keys.items())}

    def put(self, key: str, data: bytes) -> None:
        with self._lock:
            self._state.put_object(BUCKET, key, data)

    def remove(self, key: str) -> None:
        with self._lock:
            self._state.delete_object(BUCKET, key)

    def uploads(self) -> list[str]:
        """The ids of the uploads that were begun and not ended, in the order in which they were begun."""
        return list(self._bucket().multiparts)

    def begin_upload(self, key: str, age: float = 0.0) -> str:
        with self._lock:
            upload = self._state.create_multipart_upload(BUCKET, key, {}, "STANDARD", [], None, "", "")
            self._begun[upload.id] = time.time() - age
        return str(upload.id)

    def _bucket(self) -> Any:
        return self._state.buckets[BUCKET]

    # --- for connections -------------------------------------------------------------------------

    def answer(self, environ: dict[str, Any], body: bytes) -> tuple[Answer | None, Fault]:
        """The answer of one request, None for none, and how it goes wrong."""
        with self._lock:
            operation, key = _operation_of(environ)
            fault = next((fault for fault in self._faults if fault.matches(operation, key)), Fault(""))
            fault.times -= 1
            environ.pop("HTTP_" + fault.without_header.upper(), None)
            answer = self._perform(operation, key, environ, body) if fault.performs else Answer(500)
            if fault.refuse:
                answer = _refusal(*fault.refuse)
            if fault.edit:
                answer.body = fault.edit(answer.body)
            answer.headers = [header for header in answer.headers if header[0].lower() != fault.hide]
            given = None if fault.drop or fault.stall else answer
            self.seen.append(Seen(operation, key, given.status if given else 0))
        return given, fault

    def _perform(self, operation: str, key: str, environ: dict[str, Any], body: bytes) -> Answer:
        if f"Credential={ACCESS_KEY}/" not in environ.get("HTTP_AUTHORIZATION", ""):
            return _refusal(403, "InvalidAccessKeyId")
        if BUCKET not in self._state.buckets or environ["PATH_INFO"].split("/")[1] != BUCKET:
            return _refusal(404, "NoSuchBucket")
        if refusal := self._check_sums(operation, environ, body):
            return refusal
        if operation == "HeadBucket":
            return Answer(200)  # without the region, which would have botocore follow a redirection
        if operation == "ListMultipartUploads":
            return self._list_uploads(key, dict(parse_qsl(environ["QUERY_STRING"])))
        if operation == "ListObjectsV2" and "max-keys" not in environ["QUERY_STRING"]:
            environ["QUERY_STRING"] += f"&max-keys={self.page_size}"

        offset = environ.pop("HTTP_X_AMZ_WRITE_OFFSET_BYTES", None)
        if offset is not None:
            before = self._bucket().keys.get(key)
            if int(offset) != (len(before.value) if before else 0):
                return _refusal(400, "InvalidWriteOffset")
            body = (before.value if before else b"") + body
            for name, value in before.metadata.items() if before else ():
                environ[f"HTTP_X_AMZ_META_{name.upper().replace('-', '_')}"] = value
        known, has_sums = set(self.uploads()), "HTTP_X_AMZ_CHECKSUM_ALGORITHM" in environ
        answer = self._ask_moto(environ, body)
        begun = set(self.uploads()) - known
        self._begun |= dict.fromkeys(begun, time.time())
        self._with_sums |= begun if has_sums else set()
        return answer

    def _check_sums(self, operation: str, environ: dict[str, Any], body: bytes) -> Answer | None:
        """Each body has a checksum or is signed; in an upload all parts have a checksum, or none does."""
        sent = environ.pop("HTTP_X_AMZ_CHECKSUM_CRC32C", None)
        if sent not in {None, _checksum(body)}:
            return _refusal(400, "BadDigest")
        signed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
        if signed != sha256(body).hexdigest() and not (sent and signed == "UNSIGNED-PAYLOAD"):
            return _refusal(400, "XAmzContentSHA256Mismatch")
        has_sums = dict(parse_qsl(environ["QUERY_STRING"])).get("uploadId", "") in self._with_sums
        if operation == "UploadPart" and has_sums != bool(sent):
            return _refusal(400, "InvalidRequest")
        if operation == "CompleteMultipartUpload":
            parts, sums = body.count(b"<PartNumber>"), body.count(b"<ChecksumCRC32C>")
            return None if sums == (parts if has_sums else 0) else _refusal(400, "InvalidRequest")
        return None

    def _ask_moto(self, environ: dict[str, Any], body: bytes) -> Answer:
        environ |= {"wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        answer = Answer(0)

        def start_response(status: str, headers: list[tuple[str, str]], _failure: object = None) -> None:
            answer.status, answer.headers = int(status.split(maxsplit=1)[0]), headers

        answer.body = b"".join(self._app(environ, start_response))
        return answer

    def _list_uploads(self, prefix: str, query: dict[str, str]) -> Answer:
        after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        uploads = self._bucket().multiparts.items()
        left = sorted((each.key_name, id_) for id_, each in uploads if each.key_name.startswith(prefix))
        left = [each for each in left if each > after]
        page = left[: self.page_size]
        parts = [f"<IsTruncated>{'true' if left[len(page) :] else 'false'}</IsTruncated>"]
        if left[len(page) :]:
            parts += f"<NextKeyMarker>{escape(page[-1][0])}</NextKeyMarker>"
            parts += f"<NextUploadIdMarker>{page[-1][1]}</NextUploadIdMarker>"
        for key, upload_id in page:
            begun = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self._begun[upload_id]))
            parts += f"<Upload><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>"
            parts += f"<Initiated>{begun}</Initiated></Upload>"
        text = f"<ListMultipartUploadsResult>{''.join(parts)}</ListMultipartUploadsResult>"
        return Answer(200, [("Content-Type", "application/xml")], text.encode())


class _Http(ThreadingHTTPServer):
    owner: S3Server
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: set[Any] = set()

    def close_connections(self) -> None:
        for connection in list(self.connections):
            connection.abort()


class _Connection(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered: a head and a small body travel together

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self)

    def finish(self) -> None:
        self.server.connections.discard(self)
        try:
            super().finish()
        except OSError:
            return  # the client went away, or a fault closed the connection

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            return  # as above

    def handle_expect_100(self) -> bool:
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def log_message(self, *_arguments: object) -> None:
        """Nothing is logged."""

    def abort(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(2)
        except OSError:
            return  # it is closed already

    def respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        answer, fault = self.server.owner.answer(self._environ(), body)
        if fault.stall:
            self.server.owner.stopped.wait()
        if answer is None:
            self.abort()
            return

        is_head = self.command == "HEAD"
        self.send_response_only(answer.status)
        if fault.hide != "date":
            self.send_header("Date", self.date_time_string())
        for name, value in answer.headers:
            if is_head or name.lower() != "content-length":
                self.send_header(name, value)
        if not is_head:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self._send_body(b"" if is_head else answer.body, fault)

    def _send_body(self, body: bytes, fault: Fault) -> None:
        shown = body[: fault.body_bytes]
        step = max(1, int(fault.rate / 20)) if fault.rate else max(1, len(shown))
        for start in range(0, len(shown), step):
            self.wfile.write(shown[start : start + step])
            self.wfile.flush()
            time.sleep(step / fault.rate if fault.rate else 0)
        self.wfile.flush()
        if fault.body_bytes is not None:
            self.abort()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = respond  # noqa: N815 - the names that the base class calls

    def _environ(self) -> dict[str, Any]:
        path, _, query = self.path.partition("?")
        environ = {
            "REQUEST_METHOD": self.command,
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "RAW_URI": self.path,
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "wsgi.url_scheme": "http",
            "wsgi.errors": sys.stderr,
        }
        return environ | {
            f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self.headers.items()
        }


def _operation_of(environ: dict[str, Any]) -> tuple[str, str]:
    """The name that the S3 documentation gives to a request, and its key or prefix."""
    method, query = (
        environ["REQUEST_METHOD"],
        dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True)),
    )
    key = environ["PATH_INFO"].lstrip("/").partition("/")[2]
    copies = "HTTP_X_AMZ_COPY_SOURCE" in environ
    if method == "HEAD" and not key:
        return "HeadBucket", ""
    if not key:
        return ("ListMultipartUploads" if "uploads" in query else "ListObjectsV2"), query.get("prefix", "")
    if "uploadId" in query:
        part = "UploadPartCopy" if copies else "UploadPart"
        return {"PUT": part, "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}[method], key
    names = {
        "GET": "GetObject",
        "HEAD": "HeadObject",
        "DELETE": "DeleteObject",
        "POST": "CreateMultipartUpload",
    }
    return names.get(method) or ("CopyObject" if copies else "PutObject"), key


def _checksum(body: bytes) -> str:
    return b64encode(crc32c(body).to_bytes(4)).decode()


def _refusal(status: int, code: str) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>as the test asks</Message></Error>"
    return Answer(status, [("Content-Type", "application/xml")], text.encode())
