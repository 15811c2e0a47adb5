"""Long-term storage for readers without an event loop: a folder that is mounted here, or a bucket with the
credentials of this process's environment.

Before the first chunk is read, the storage must prove that it is the store's: its ``_system/store`` has the
store's id (rule S21). A path that exists is no proof, nor is a bucket of that name at another service."""

from __future__ import annotations

import errno
from importlib.util import find_spec
from typing import Protocol

from ...journal.manifest.store_record import STORE_RECORD, StoreRecord
from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import (
    ChunkNotFound,
    ConfigError,
    DataCorruption,
    InvalidArgument,
    StoreMismatch,
    Unavailable,
    shown,
)
from ...storage_backends.base.os_errors import explain
from ...storage_backends.base.segment_layout import StoragePlace
from ...storage_backends.chunks.s3_location import SCHEME, parse_location
from ...storage_backends.files.file_ranges import FileRanges

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)
_RECORD_BYTES_MAX = 256
_FOLDER_PIECE = 1 << 20
"""One block: what was read, verified and divided goes through the processor's cache only once."""
_BUCKET_PIECE = 8 << 20
_BUCKET_AHEAD = 3


class DirectStorage(Protocol):
    """Chunks of one storage."""

    @property
    def piece_bytes(self) -> int:
        """The size of reads that suits the storage."""
        ...

    @property
    def ahead(self) -> int:
        """How many reads to begin before their bytes are needed."""
        ...

    def read_into(self, chunk: str, offset: int, target: memoryview) -> int:
        """Fill ``target`` from ``offset`` on; returns how many bytes there were. Raises ``ChunkNotFound``,
        ``Unavailable``."""
        ...

    def close(self) -> None: ...


class FolderStorage:
    """For one thread at a time."""

    piece_bytes, ahead = _FOLDER_PIECE, 0

    def __init__(self, root: str) -> None:
        self._files = FileRanges(root)

    def read_into(self, chunk: str, offset: int, target: memoryview) -> int:
        try:
            return self._files.read_into(chunk, offset, target)
        except OSError as error:
            self._files.close_file()
            if error.errno in _MISSING:
                raise ChunkNotFound(f"there is no chunk {chunk}", chunk=chunk) from error
            raise Unavailable(explain(error, self._files.path(chunk))) from error

    def close(self) -> None:
        self._files.close()


class BucketStorage:
    piece_bytes, ahead = _BUCKET_PIECE, _BUCKET_AHEAD

    def __init__(self, place: StoragePlace) -> None:
        if find_spec("aiobotocore") is None:
            raise ConfigError(f"{place.location} needs aiobotocore here: pip install 'tierlog[s3]'")
        # What takes long to import is only for those who have a bucket.
        from ...storage_backends.chunks.s3_requests import S3Options
        from ...storage_backends.chunks.s3_threads import S3ThreadReader

        options = S3Options(endpoint=place.endpoint, region=place.region)
        self._reader = S3ThreadReader(parse_location(place.location), options)
        self._reader.open()

    def read_into(self, chunk: str, offset: int, target: memoryview) -> int:
        data = self._reader.read(chunk, offset, len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._reader.close()


def open_storage(place: StoragePlace) -> DirectStorage:
    """The storage at ``place``, which has proved to be the store's.

    Raises ``Unavailable`` if it is not there or may not be read, ``ConfigError`` if something is missing for
    that, ``StoreMismatch`` if it is another store's, ``InvalidArgument`` for what is no location."""
    storage = _at(place)
    try:
        _check_store(storage, place)
    except BaseException:
        storage.close()
        raise
    return storage


def check_location(location: str) -> None:
    """Raises ``InvalidArgument`` for what is no location of long-term storage."""
    if location.startswith(SCHEME):
        parse_location(location)
    elif not location.startswith("/") or "\0" in location:
        raise InvalidArgument(
            f"long-term storage is at an absolute path or {SCHEME}BUCKET/PREFIX, not {shown(location)}"
        )


def _at(place: StoragePlace) -> DirectStorage:
    if not place.location:
        raise Unavailable("the store does not say where its long-term storage is")

    check_location(place.location)
    return BucketStorage(place) if place.location.startswith(SCHEME) else FolderStorage(place.location)


def _check_store(storage: DirectStorage, place: StoragePlace) -> None:
    data = bytearray(_RECORD_BYTES_MAX)
    try:
        size = storage.read_into(STORE_RECORD, 0, memoryview(data))
    except ChunkNotFound:
        raise Unavailable(
            f"{place.location} is not there, or not mounted, or no long-term storage of a store: it has no "
            f"{STORE_RECORD}"
        ) from None
    try:
        found = StoreRecord.decode(memoryview(data)[:size]).store.hex()
    except DecodeError as error:
        raise DataCorruption(str(error), file=f"{place.location}/{STORE_RECORD}", offset=0) from error

    if found != place.store:
        raise StoreMismatch(
            f"{place.location} is the long-term storage of store {found} here, not of {place.store}"
        )
