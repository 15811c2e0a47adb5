"""Lock files: one locked file in ``owners`` for each process that has the data folder open. Not in ``wal``:
whoever moves that away under a process would take the lock along (rule R5).

They inform people and the command line and fence nothing: only the log's epoch decides who owns a container.
A file stays locked until its process ends, closes the store or notices that it was fenced; the next opening
removes unlocked ones. Nothing here is durable.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from ...storage_backends.base.errors import NotOwner
from ...storage_backends.base.files import (
    FULL,
    NOT_A_FILE,
    Close,
    FileHandle,
    IsNamed,
    ListFolder,
    Lock,
    MakeFolder,
    Open,
    Program,
    Read,
    RemoveFolder,
    Unlink,
    Write,
)

_FILE_BYTES_MAX = 4096
SUPERVISOR = "supervisor"
"""The role of the process that serves the folder through its hosts."""


class Owner(Struct, frozen=True):
    """A process that has the folder open."""

    owner_id: str
    pid: int
    host: str
    since_ms: int
    """Wall time, for display."""
    alive: bool = True
    role: str = ""
    """A host's id or ``SUPERVISOR``; empty for an app or a command."""
    url: str = ""
    """Where it serves the folder; empty if it does not."""
    start: str = ""
    """Identifies the process among all that have its number (``process_start``); empty if unknown."""


def create_lock_file(folder: str, owner: Owner) -> Program[FileHandle]:
    """Create the locked file of ``owner`` and remove those of dead processes. The lock lives as long as the
    handle."""
    while True:
        yield MakeFolder(folder)
        with suppress(FileNotFoundError):  # the last other owner removed the folder meanwhile
            return (yield from _create(folder, owner, (yield from list_owners(folder))))


def _create(folder: str, owner: Owner, others: list[Owner]) -> Program[FileHandle]:
    for other in others:
        if not other.alive:
            with suppress(FileNotFoundError):  # another opening removed it first
                yield Unlink(f"{folder}/{other.owner_id}")

    while True:
        handle: FileHandle = yield Open(f"{folder}/{owner.owner_id}", write=True, create=True)
        try:
            # A process that lists the owners may hold the lock for a moment.
            yield Lock(handle)
            entries = yield ListFolder(folder)
        except OSError:
            yield Close(handle)
            raise
        # Before the lock, another opening takes the file for a dead process's and may remove it.
        if any(entry.name == owner.owner_id for entry in entries):
            try:
                yield Write(handle, 0, [encode_owner(owner)])
            except OSError as error:
                # The lock is enough, and what makes room on a full disk needs an opening.
                if error.errno not in FULL:
                    raise
            return handle

        yield Close(handle)


def create_only_lock_file(data_folder: str, folder: str, owner: Owner, identity: str) -> Program[FileHandle]:
    """As ``create_lock_file``, unless another process has the data folder open: then ``NotOwner`` is raised,
    as ``OpenElsewhere``. A lock on the file ``identity`` makes the check and the creation one step."""
    guard: FileHandle = yield Open(identity)
    try:
        # Without a name it was replaced meanwhile by another opening (rule W11).
        if not ((yield Lock(guard, wait=False)) and (yield IsNamed(guard))):
            raise _open_elsewhere(data_folder, ())

        while True:
            yield MakeFolder(folder)
            others = yield from list_owners(folder)
            _refuse_alive(data_folder, owner, [other for other in others if other.alive])
            with suppress(FileNotFoundError):
                return (yield from _create(folder, owner, others))
    finally:
        yield Close(guard)


def _refuse_alive(data_folder: str, owner: Owner, alive: Sequence[Owner]) -> None:
    if any(_is_same_process(other, owner) for other in alive):
        raise NotOwner(f"this process has {data_folder} open already: use that store, or close it first")
    if alive:
        raise _open_elsewhere(data_folder, alive)


def _is_same_process(one: Owner, other: Owner) -> bool:
    return (one.pid, one.host, one.start) == (other.pid, other.host, other.start)


def describe_opening(folder: str, owners: Sequence[Owner], *, take_over: str = "", use_service: str) -> str:
    """That ``owners`` have ``folder`` open, or that it is being opened if there are none, and what to do.

    ``take_over`` is how the caller opens it all the same, if it can, ``use_service`` what to do about a
    service, whose URL replaces ``{url}`` in it."""
    if not owners:
        return (
            f"{folder} is being opened, in this process or another: open it in one place at a time, or fence "
            f"the other opening with {take_over}"
        )

    # Of a service's processes the one that clients can ask.
    shown = max(owners, key=lambda owner: (bool(owner.url), not owner.role))
    where = f"process {shown.pid} on {shown.host}"
    if shown.url:
        return f"{folder} is served by {where} at {shown.url}: {use_service.format(url=shown.url)}"

    if shown.role and not take_over:
        return f"{folder} is open in {where}, a host of a service whose supervisor has ended: stop it first"

    if shown.role:
        return (
            f"{folder} is open in {where}, a host of a service whose supervisor has ended: start `tierlog "
            f"serve` again, which goes on with its hosts; if the service is not to go on, fence them with "
            f"{take_over}"
        )

    fence = f", or fence it with {take_over}" if take_over else " first"
    return f"{folder} is open in {where}: stop that process{fence}"


class OpenElsewhere(NotOwner):
    """Other processes have the folder open: ``owners``, or none if it is being opened now."""

    def __init__(self, message: str, owners: Sequence[Owner] = ()) -> None:
        super().__init__(message)
        self.owners = owners


def _open_elsewhere(folder: str, owners: Sequence[Owner]) -> OpenElsewhere:
    use_service = "use tierlog.connect({url!r}), or stop that service"
    message = describe_opening(folder, owners, take_over="take_over=True", use_service=use_service)
    return OpenElsewhere(message, owners)


def remove_lock_file(folder: str, owner: Owner, handle: FileHandle) -> Program[None]:
    """The folder too, if it was the last one."""
    try:
        with suppress(FileNotFoundError):  # removed by an opening that listed it before it was locked
            yield Unlink(f"{folder}/{owner.owner_id}")
        yield RemoveFolder(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
            raise
    finally:
        yield Close(handle)


def list_owners(folder: str) -> Program[list[Owner]]:
    """The processes with a lock file, dead or alive."""
    try:
        entries = yield ListFolder(folder)
    except FileNotFoundError:
        return []

    owners = []
    for entry in entries:
        owner = yield from _inspect(folder, entry.name)
        if owner is not None:
            owners.append(owner)

    return owners


def _inspect(folder: str, name: str) -> Program[Owner | None]:
    try:
        handle = yield Open(f"{folder}/{name}")
    except OSError as error:
        if error.errno in (errno.ENOENT, *NOT_A_FILE):
            return None  # closed meanwhile, or nobody's lock file
        raise

    # The lock shows whether the process lives, not its number: numbers are used again, and one from another
    # machine names another process here.
    free = yield Lock(handle, wait=False)
    data = yield Read(handle, 0, _FILE_BYTES_MAX)
    yield Close(handle)
    return decode_owner(name, data, alive=not free)


def encode_owner(owner: Owner) -> bytes:
    fields = {
        "pid": owner.pid,
        "host": owner.host,
        "since_ms": owner.since_ms,
        "role": owner.role,
        "url": owner.url,
        "start": owner.start,
    }
    return json.dumps(fields).encode()


def decode_owner(name: str, data: bytes, *, alive: bool) -> Owner:
    """The owner in the file ``name``; an unknown one if a crash tore the file, or if it is not written
    yet."""
    try:
        fields = json.loads(data)
        pid, host, since_ms = fields["pid"], fields["host"], fields["since_ms"]
        texts = (host, *(fields.get(name, "") for name in ("role", "url", "start")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Owner(name, 0, "unknown", 0, alive=alive)

    # No process writes other types, or numbers of more than 64 bits: such a file is damaged.
    numbers = (
        type(pid) is int
        and type(since_ms) is int
        and max(pid, since_ms) < 1 << 63
        and min(pid, since_ms) >= 0
    )
    if numbers and all(isinstance(text, str) for text in texts):
        host, role, url, start = map(_printable, texts)
        return Owner(name, pid, host, since_ms, alive, role, url, start)
    return Owner(name, 0, "unknown", 0, alive=alive)


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
