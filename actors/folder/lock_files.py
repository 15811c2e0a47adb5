"""Who has a data folder open: one locked file for each opening, in ``wal/owners``.

Owns: the files and their meaning. It is information for people and for the command line, never a fence: the
log's epoch alone decides who owns a container, and a second opening of an embedded store simply fences the
first.

A file is locked as long as its process lives; an unlocked one is left over and is swept by the next opening.
Nothing here is durable.
"""

from __future__ import annotations

import json
from contextlib import suppress

import attrs

from ...storage_backends.base.files import (
    Close,
    FileHandle,
    ListFolder,
    Lock,
    MakeFolder,
    Open,
    Program,
    Read,
    Unlink,
    Write,
)

_FILE_BYTES_MAX = 4096
SUPERVISOR = "supervisor"
"""The role of who serves the folder through its hosts."""


@attrs.frozen
class Owner:
    """One opening."""

    owner_id: str
    pid: int
    host: str
    since_ms: int
    """Wall time, for display."""
    alive: bool = True
    role: str = ""
    """What it opened the folder as: a host's id, ``SUPERVISOR``, or nothing for an app or a command."""
    url: str = ""
    """Where it serves the whole folder, if it does."""


def create_lock_file(folder: str, owner: Owner) -> Program[FileHandle]:
    """Say that ``owner`` has the folder open, and sweep what dead ones left. The handle keeps it said."""
    yield MakeFolder(folder)
    for left in (yield from list_owners(folder)):
        if not left.alive:
            with suppress(FileNotFoundError):  # another opening swept it first
                yield Unlink(f"{folder}/{left.owner_id}")

    handle: FileHandle = yield Open(f"{folder}/{owner.owner_id}", write=True, create=True)
    # Somebody who lists the owners may hold it for a moment.
    yield Lock(handle)
    yield Write(handle, 0, [encode_owner(owner)])
    return handle


def remove_lock_file(folder: str, owner: Owner, handle: FileHandle) -> Program[None]:
    """Take the announcement back."""
    try:
        with suppress(FileNotFoundError):  # swept by an opening that listed it before it was locked
            yield Unlink(f"{folder}/{owner.owner_id}")
    finally:
        yield Close(handle)


def list_owners(folder: str) -> Program[list[Owner]]:
    """Everybody who said so, dead or alive."""
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
    except FileNotFoundError:
        return None  # withdrawn meanwhile

    free = yield Lock(handle, wait=False)
    data = yield Read(handle, 0, _FILE_BYTES_MAX)
    yield Close(handle)
    return decode_owner(name, data, alive=not free)


def encode_owner(owner: Owner) -> bytes:
    said = {
        "pid": owner.pid,
        "host": owner.host,
        "since_ms": owner.since_ms,
        "role": owner.role,
        "url": owner.url,
    }
    return json.dumps(said).encode()


def decode_owner(name: str, data: bytes, *, alive: bool) -> Owner:
    """The owner that the file ``name`` tells of; an unknown one if a crash tore it, or it is not written
    yet."""
    try:
        said = json.loads(data)
        pid, host, since_ms, role, url = (
            said["pid"],
            said["host"],
            said["since_ms"],
            said.get("role", ""),
            said.get("url", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Owner(name, 0, "unknown", 0, alive=alive)

    # Numbers that fit into 64 bits and text that can be printed: whatever else JSON can say, nobody said it
    # here.
    numbers = (
        type(pid) is int
        and type(since_ms) is int
        and max(pid, since_ms) < 1 << 63
        and min(pid, since_ms) >= 0
    )
    if numbers and all(isinstance(text, str) for text in (host, role, url)):
        return Owner(name, pid, _printable(host), since_ms, alive, _printable(role), _printable(url))
    return Owner(name, 0, "unknown", 0, alive=alive)


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
