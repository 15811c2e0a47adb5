"""What a small S3 server holds and decides: buckets, objects, multipart uploads, and the refusals of the REST
interface.

Owns: the rules that a chunk storage depends on: conditional creation, exact write offsets, byte ranges, lists
in key order by pages, multipart uploads with their least part size. Every method is one synchronous step, so
requests of several connections never see a half. Does not own: HTTP, faults, time (``s3_server.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

import attrs
from sortedcontainers import SortedDict

PART_BYTES_MIN = 5 << 20
"""The least size of each part of an upload but the last, and of an object of which a range may be copied."""


class S3Refusal(Exception):
    """An error answer: its HTTP status, its code, and what it says."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


@attrs.frozen
class S3Object:
    data: bytes
    metadata: Mapping[str, str]
    modified: float

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@attrs.define
class S3Upload:
    key: str
    metadata: Mapping[str, str]
    initiated: float
    parts: dict[int, S3Object] = attrs.field(factory=dict)


@attrs.frozen
class Page:
    """A part of a list; ``more_after`` is where the next one goes on, empty at the end."""

    items: Sequence[tuple[str, S3Object]]
    more_after: str


@attrs.define
class S3Bucket:
    appendable: bool = True
    """Whether puts with a write offset are known here."""
    part_min: int = PART_BYTES_MIN
    objects: SortedDict[str, S3Object] = attrs.field(factory=SortedDict)
    uploads: dict[str, S3Upload] = attrs.field(factory=dict)
    _uploads_begun: int = 0

    # --- objects --------------------------------------------------------------------------------------------

    def find(self, key: str) -> S3Object:
        found: S3Object | None = self.objects.get(key)
        if found is None:
            raise S3Refusal(404, "NoSuchKey", "The specified key does not exist.")

        return found

    def put(self, key: str, made: S3Object, *, if_none_match: bool) -> None:
        if if_none_match:
            self._refuse_existing(key)
        self.objects[key] = made

    def append(self, key: str, offset: int, made: S3Object) -> None:
        """Put ``made`` behind the ``offset`` bytes that are there; at 0 it makes the object, if it is
        missing."""
        if not self.appendable:
            raise S3Refusal(
                501, "NotImplemented", "A header you provided implies functionality that is not implemented."
            )

        before: S3Object | None = self.objects.get(key)
        length = len(before.data) if before else 0
        if offset != length:
            raise S3Refusal(
                400, "InvalidWriteOffset", f"The write offset is {offset}, the object has {length} bytes."
            )

        self.objects[key] = (
            attrs.evolve(before, data=before.data + made.data, modified=made.modified) if before else made
        )

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def page(self, prefix: str, after: str, count: int) -> Page:
        """At most ``count`` objects below ``prefix`` whose keys come after ``after``."""
        found = list(islice(self._below(prefix, after), count + 1))
        return Page(found[:count], found[count - 1][0] if len(found) > count else "")

    def _below(self, prefix: str, after: str) -> Iterator[tuple[str, S3Object]]:
        for key in self.objects.irange(max(prefix, after)):
            if not key.startswith(prefix):
                return
            if key > after:
                yield key, self.objects[key]

    def _refuse_existing(self, key: str) -> None:
        if key in self.objects:
            raise S3Refusal(
                412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"
            )

    # --- multipart ------------------------------------------------------------------------------------------

    def begin_upload(self, key: str, metadata: Mapping[str, str], now: float) -> str:
        self._uploads_begun += 1
        upload_id = f"upload-{self._uploads_begun}"
        self.uploads[upload_id] = S3Upload(key, metadata, now)
        return upload_id

    def upload(self, upload_id: str) -> S3Upload:
        found = self.uploads.get(upload_id)
        if found is None:
            raise S3Refusal(
                404,
                "NoSuchUpload",
                "The specified upload does not exist. It may have been aborted or completed.",
            )

        return found

    def put_part(self, upload_id: str, number: int, part: S3Object) -> None:
        if not 1 <= number <= 10_000:
            raise S3Refusal(
                400, "InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive"
            )

        self.upload(upload_id).parts[number] = part

    def copy_part(
        self, upload_id: str, number: int, source: S3Object, span: tuple[int, int] | None
    ) -> S3Object:
        """Make a part of all of ``source``, or of the bytes ``span[0] .. span[1]``, which must all be
        there."""
        data = source.data
        if span is not None:
            if len(data) <= self.part_min or span[1] > len(data):
                raise S3Refusal(
                    400, "InvalidRequest", "The specified copy range is invalid for the source object size."
                )
            data = data[span[0] : span[1]]
        part = S3Object(data, {}, source.modified)
        self.put_part(upload_id, number, part)
        return part

    def complete_upload(
        self, upload_id: str, listed: Sequence[tuple[int, str]], now: float, *, if_none_match: bool
    ) -> S3Object:
        """Make the object of the listed (number, etag) parts. A refused completion leaves the upload as it
        was."""
        upload = self.upload(upload_id)
        numbers = [number for number, _ in listed]
        if not numbers or numbers != sorted(set(numbers)):
            raise S3Refusal(400, "InvalidPartOrder", "The list of parts was not in ascending order.")

        if any(number not in upload.parts or upload.parts[number].etag != etag for number, etag in listed):
            raise S3Refusal(400, "InvalidPart", "One or more of the specified parts could not be found.")

        parts = [upload.parts[number].data for number in numbers]
        if any(len(part) < self.part_min for part in parts[:-1]):
            raise S3Refusal(
                400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size"
            )

        made = S3Object(b"".join(parts), upload.metadata, now)
        self.put(upload.key, made, if_none_match=if_none_match)
        del self.uploads[upload_id]
        return made

    def abort_upload(self, upload_id: str) -> None:
        self.upload(upload_id)
        del self.uploads[upload_id]
