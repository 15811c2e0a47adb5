"""``LocalCoordination``: records as files of the data folder and leases as file locks, for the processes of
one machine (rule D6).

A record is created by a link, so it appears whole, and replaced by a rename under a lock of the file that is
replaced. Both are durable with their names before they return (rule W11). Its version is a hash of its bytes.
A lease ends with its process, or when it is released: no clock is asked.

Crash: a record is as before or as after, and a temporary file may be left, which does no harm. Programs are
not abandoned on cancellation (rule W7).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b

import anyio.lowlevel
import attrs

from ...journal.coordination.contract import (
    RECORD_BYTES_MAX,
    SUPERVISOR,
    TERM,
    Coordination,
    Lease,
    LeaseHeld,
    Record,
)
from ...storage_backends.base.errors import InvalidArgument, NotOwner
from ...storage_backends.base.files import (
    Close,
    FileHandle,
    Files,
    IsNamed,
    Lock,
    Open,
    Program,
    Read,
    Unlink,
    create_whole,
    remake_name,
)
from .paths import StoreFolder, run_program
from .process_lock import take_lock


class LocalCoordination(Coordination):
    def __init__(self, files: Files, folder: StoreFolder, new_id: Callable[[], str]) -> None:
        self._files = files
        self._paths = {TERM: f"{folder.path}/supervisor/term"}
        self._locks = {SUPERVISOR: f"{folder.path}/supervisor"}
        self._new_id = new_id

    def place(self, name: str) -> str:
        return self._paths[name]

    async def load(self, name: str) -> Record | None:
        path = self._paths[name]
        data = await run_program(self._files, _load(path), path)
        if data is None:
            return None
        return Record(data if len(data) <= RECORD_BYTES_MAX else b"", _version(data))

    async def compare_and_set(self, name: str, data: bytes, version: str = "") -> str | None:
        if not 1 <= len(data) <= RECORD_BYTES_MAX:
            raise InvalidArgument(f"a record has 1 to {RECORD_BYTES_MAX} bytes, not {len(data)}")
        path = self._paths[name]
        if version:
            program = _replace(path, data, version)
        else:
            program = _create(path, f"{path}.{self._new_id()}", data)
        # D1: what is there with the same bytes is this record, whoever has put it.
        return _version(data) if await run_program(self._files, program, path) == data else None

    async def take_lease(self, name: str, holder: str, duration: float) -> Lease:
        path = self._locks[name]

        def refusal(pid: str) -> LeaseHeld:
            return LeaseHeld(f"{path} is locked by process {pid}", f"process {pid}")

        return _LocalLease(self._files, path, await run_program(self._files, take_lock(path, refusal), path))


@attrs.define(eq=False, repr=False)
class _LocalLease(Lease):
    _files: Files
    _path: str
    _lock: FileHandle | None

    def is_held(self) -> bool:
        return self._lock is not None

    async def renew(self, confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        await anyio.lowlevel.checkpoint()
        if self._lock is None:
            raise NotOwner(f"the lock in {self._path} was released")

    async def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            await self._files.run(_close(lock))


# --- files ----------------------------------------------------------------------------------------


def _version(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _load(path: str) -> Program[bytes | None]:
    try:
        handle = yield Open(path)
    except FileNotFoundError:
        return None
    try:
        return (yield from _read(handle))
    finally:
        yield Close(handle)


def _read(handle: FileHandle) -> Program[bytes]:
    # One byte more, so that a longer file shows.
    data: bytes = yield Read(handle, 0, RECORD_BYTES_MAX + 1)
    return data


def _create(path: str, temporary: str, data: bytes) -> Program[bytes | None]:
    """D6: create the file if it is missing. Returns what it has then."""
    yield from create_whole(path, temporary, data)
    return (yield from _load(path))


def _replace(path: str, data: bytes, version: str) -> Program[bytes | None]:
    """D6: replace the file if it has this version. Returns what it has then; None if it is missing."""
    while True:
        try:
            handle = yield Open(path)
        except FileNotFoundError:
            return None
        try:
            yield Lock(handle)
            # Without a name: another process has replaced it since it was opened.
            if (yield IsNamed(handle)):
                found = yield from _read(handle)
                if _version(found) != version:
                    return found
                temporary = f"{path}.new"
                with suppress(FileNotFoundError):  # one that a crash left
                    yield Unlink(temporary)
                yield from remake_name(path, temporary, data)
                return data
        finally:
            yield Close(handle)


def _close(handle: FileHandle) -> Program[None]:
    yield Close(handle)
