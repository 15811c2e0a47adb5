"""``FileSystemChunkStorage``: chunks as plain files below a root folder, on a local disk or an NFS mount.

A chunk's file has the chunk's name and exactly the user's bytes (rule S1). Names with a leading dot are never
chunks: ``.tmp-<id>`` in the root is an object being written, ``.tierlog-chunks`` identifies the root.

A whole object is written to a temporary name, synced and linked to its name, which fails if that exists; then
the folder is synced (rule S2). An append checks the size, writes at the offset and syncs. A new folder is
made durable, parent by parent, before anything is linked into it. A delete syncs the folder too and removes
folders that became empty; many of them together sync each folder once.

Cancellation: a program runs to its end, but the caller does not learn how it ended. Crash: a temporary name
is left, or a prefix of an append. ``open`` removes all temporary names, those of living owners too: their
creations then fail with ``Unavailable`` and are repeated.

Read-only is a file permission, checked before each write. Below the root no symbolic link is followed, so
that no one who may write there can redirect a chunk's bytes; a link is neither a chunk nor a folder of
chunks. The root itself may be a link. Nothing is created, changed, listed or reported missing unless the
root's identification is visible to the same I/O program (rule S20): an unmounted root raises
``Unavailable``.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from posixpath import dirname
from typing import TypeVar

import anyio
import anyio.lowlevel

from ..base.checksum import Buffer
from ..base.chunk_storage import Capabilities, ChunkInfo, ChunkRange, can_begin_chunk_name
from ..base.errors import ChunkNotFound, ChunkReadOnly, InvalidArgument, StorageFull, Unavailable
from ..base.files import (
    NOT_A_FILE,
    FileHandle,
    Files,
    FolderEntry,
    IsReadOnly,
    ListFolder,
    Open,
    Program,
    Read,
    SetReadOnly,
    Size,
    Sync,
    Write,
    make_folder,
    sync_ancestry,
)
from ..base.lock_table import LockTable
from ..base.names import SYSTEM_SCOPE
from ..base.world import World
from .base import BaseChunkStorage, ReadOnlyChunks, bad_offset, size_of
from .filesystem_programs import (
    IDENTIFICATION,
    TEMPORARY,
    FolderRemoved,
    Folders,
    Progress,
    copy_ranges,
    discard,
    identify_root,
    keep_reserve,
    mapped,
    publish,
    release_reserve,
    remove,
    with_file,
)

T = TypeVar("T")

_THREADS = 8
_PUBLISH_ATTEMPTS = 8


class FileSystemChunkStorage(BaseChunkStorage):
    """``root`` is an absolute path; at most 8 calls run at a time; ``world`` provides ids for temporary
    names. Without ``create``, ``open`` does not make the root: one that is missing or has no
    identification is not mounted (rule S20). ``reserve_bytes`` are kept for the store's own objects (rule
    S22)."""

    def __init__(
        self, files: Files, root: str, world: World, *, create: bool = True, reserve_bytes: int = 0
    ) -> None:
        super().__init__()
        if not root.startswith("/"):
            raise InvalidArgument(f"the root of a chunk storage must be an absolute path, not {root!r}")

        # A lane of its own: a file system that hangs takes these threads and none of the log's (W7).
        self._files = files.lane("chunks", _THREADS, nofollow_root=root.rstrip("/"))
        self._root = root.rstrip("/")
        self._world = world
        self._may_create = create
        self._reserve_bytes = reserve_bytes
        self._folders = Folders(self._root)
        self._making: LockTable[str] = LockTable()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=True, concat=True, delete_many=True)

    async def _open(self) -> None:
        if not self._may_create:
            await self._run("", lambda progress: self._prepare())
            return None

        for _ in range(_PUBLISH_ATTEMPTS):
            # Two programs: all calls of one are in the same root.
            await self._run("", lambda progress: self._make_root())
            with suppress(FolderRemoved):
                return await self._run("", lambda progress: self._prepare_new())
        raise Unavailable(f"{self._root} was not made, because another process removed it: open it again")

    async def _info(self, name: str) -> ChunkInfo:
        def program(progress: Progress) -> Program[ChunkInfo]:
            length = yield from with_file(Open(self._path(name)), _length)
            read_only: bool = yield IsReadOnly(self._path(name))
            return ChunkInfo(name, length, read_only)

        return await self._run(name, program)

    async def _create(self, name: str) -> None:
        await self._create_with_content(name, [])

    async def _create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        size = size_of(data)

        def fill(handle: FileHandle) -> Program[int]:
            if size:
                yield Write(handle, 0, data, bulk=True)
            return size

        return await self._publish(name, fill)

    async def _write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        size = size_of(data)

        def program(progress: Progress) -> Program[int]:
            yield from self._keep_reserve(name)
            progress.appends = True
            # The superuser may write to any file, so the permissions are checked here.
            if (yield IsReadOnly(self._path(name))):
                raise ChunkReadOnly(f"chunk {name} is read-only", chunk=name)

            return (
                yield from with_file(
                    Open(self._path(name), write=True, cold=True), lambda handle: append(handle, progress)
                )
            )

        def append(handle: FileHandle, progress: Progress) -> Program[int]:
            length = yield Size(handle)
            if length != offset:
                raise bad_offset(name, length, offset)

            if size:
                progress.changed = True
                yield Write(handle, offset, data, bulk=True)
                # S3: the length that the caller commits must be durable before the commit is.
                yield Sync(handle)
            return offset + size

        return await self._change(name, program, alters=True)

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        def body(handle: FileHandle) -> Program[bytes]:
            data: bytes = yield Read(handle, offset, size)
            return data

        return await self._run(name, lambda progress: with_file(Open(self._path(name)), body))

    async def _delete(self, name: str) -> None:
        if await self._delete_many([name]):
            raise ChunkNotFound(f"there is no chunk {name}", chunk=name)

    async def _delete_many(self, names: Sequence[str]) -> Sequence[str]:
        """In one program, with one sync for each folder."""
        by_path = {self._path(name): name for name in names}

        def program(progress: Progress) -> Program[Sequence[str]]:
            missing = yield from remove(list(by_path), self._folders, progress)
            if missing:
                yield from self._require_root()
            return [by_path[path] for path in missing]

        return await self._change(names[0], program, alters=True)

    async def _concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._publish(name, lambda handle: copy_ranges(handle, ranges, self._path))

    async def _set_read_only(self, name: str, read_only: bool) -> None:
        def program(progress: Progress) -> Program[None]:
            # A folder has permissions too, but is not a chunk.
            yield from with_file(Open(self._path(name)), _length)
            yield SetReadOnly(self._path(name), read_only)

        await self._change(name, program, alters=True)

    async def _list(self, prefix: str, after: str) -> AsyncGenerator[ChunkInfo, None]:
        # All chunks with the prefix are below its last folder, and each folder above would be one call more.
        pending = [(prefix.rpartition("/")[0], FolderEntry("", is_folder=True, size=0))]
        while pending:
            path, entry = pending.pop()
            if not entry.is_folder:
                yield ChunkInfo(path, entry.size)
                continue

            # A stack: the first name of a folder comes next, so all names come in order.
            pending.extend(reversed(await self._entries(path, prefix, after)))

    async def _used_space(self) -> int:
        """The sum of all chunks' lengths. Walks all folders."""
        return sum([info.length async for info in self._list("", "")])

    # --- inside ----------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_root(self) -> Program[None]:
        try:
            yield from make_folder(self._root, with_parent=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise InvalidArgument(
                f"no folder can be made at {self._root}, because this path, or a part of it, is a file: name "
                f"another one"
            ) from error

    def _prepare_new(self) -> Program[None]:
        try:
            yield from self._prepare()
        except FileNotFoundError as error:  # Another opening makes the empty root again (rule W11).
            raise FolderRemoved from error

    def _prepare(self) -> Program[None]:
        if not self._may_create:
            try:
                yield from self._require_root()
            except Unavailable:
                return  # Every later call reports it until the root is mounted.

        entries: Sequence[FolderEntry] = yield ListFolder(self._root)
        for entry in entries:
            if entry.name.startswith(TEMPORARY):
                yield from discard(f"{self._root}/{entry.name}")
        with suppress(StorageFull):
            yield from self._keep_reserve()
        if any(entry.name == IDENTIFICATION for entry in entries):
            if any(can_begin_chunk_name(entry.name) for entry in entries):
                return  # Chunks come after it, so its name is durable.
        else:
            # Created last: where it exists, the root is durable, whichever process made it.
            yield from sync_ancestry(self._root)
        yield from identify_root(self._root, self._world.new_id())

    def _keep_reserve(self, name: str = "") -> Program[None]:
        """Before a chunk of a user's grows (rule S22). Raises ``StorageFull``."""
        if self._reserve_bytes and not name.startswith(SYSTEM_SCOPE):
            yield from keep_reserve(self._root, self._reserve_bytes, self._world.new_id)

    async def _publish(self, name: str, fill: Callable[[FileHandle], Program[int]]) -> int:
        try:
            return await self._publish_once(name, fill)
        except StorageFull:
            if not name.startswith(SYSTEM_SCOPE):
                raise
            # S22: deleting needs elements and runs.
            await self._change(name, lambda progress: release_reserve(self._root))
            return await self._publish_once(name, fill)

    async def _publish_once(self, name: str, fill: Callable[[FileHandle], Program[int]]) -> int:
        path = self._path(name)
        temporary = f"{self._root}/{TEMPORARY}{self._world.new_id()}"

        def program(progress: Progress) -> Program[int]:
            yield from self._keep_reserve(name)
            return (yield from publish(path, temporary, fill, self._folders, progress))

        for _ in range(_PUBLISH_ATTEMPTS):
            with suppress(FolderRemoved):
                await self._make_folder(name)
                return await self._change(name, program)
        raise Unavailable(
            f"{path} was not written, because another process removed its folder, or the temporary file "
            f"{temporary}; write it again"
        )

    async def _make_folder(self, name: str) -> None:
        """Make the folder of a chunk durably."""
        folder = dirname(self._path(name))
        while (missing := self._folders.missing(folder)) is not None:
            # What one program makes another must not take for durable before it is synced.
            async with self._making.holding(missing):
                if self._folders.missing(folder) == missing:
                    await self._change(name, lambda progress: self._folders.make(folder))

    async def _entries(self, path: str, prefix: str, after: str) -> Sequence[tuple[str, FolderEntry]]:
        """(chunk or folder name, entry) of one folder, in the order of the chunk names below them; only what
        may have chunks that ``_list`` returns.

        Names that no chunk can have are skipped; such a folder may be unreadable, like ``lost+found`` of a
        mount point.
        """

        def program(progress: Progress) -> Program[Sequence[tuple[str, FolderEntry]]]:
            # All of it in the program: a folder may be too large for one step of the event loop.
            yield from self._require_root()
            try:
                entries: Sequence[FolderEntry] = yield ListFolder(f"{self._root}/{path}".rstrip("/"))
            except OSError as error:
                if path and error.errno in (errno.ENOENT, errno.ENOTDIR, *NOT_A_FILE):
                    return []  # It is no folder, or was removed in the meantime.
                raise

            parent = f"{path}/" if path else ""
            named = [(parent + entry.name, entry) for entry in entries]
            found = [
                (name, entry)
                for name, entry in named
                if can_begin_chunk_name(name) and _may_match(name, entry, prefix, after)
            ]
            # "/" sorts after "-" and ".", so a folder is sorted with the slash of its chunks' names.
            return sorted(found, key=lambda each: f"{each[0]}/" if each[1].is_folder else each[0])

        return await self._run(path, program)

    async def _change(
        self, name: str, program: Callable[[Progress], Program[T]], *, alters: bool = False
    ) -> T:
        def checked(progress: Progress) -> Program[T]:
            yield from self._require_root()
            return (yield from program(progress))

        return await self._run(name, checked, alters=alters)

    async def _run(self, name: str, program: Callable[[Progress], Program[T]], *, alters: bool = False) -> T:
        """Drive a program whose ``OSError`` is mapped."""

        def mapping(progress: Progress) -> Program[T]:
            try:
                return (yield from program(progress))
            except (OSError, ChunkNotFound) as error:
                path = self._path(name).rstrip("/")
                answer = mapped(error, name, path, progress) if isinstance(error, OSError) else error
                # S20: in the folder of a missing mount every chunk would be missing.
                if isinstance(answer, ChunkNotFound):
                    yield from self._require_root()
                if answer is error:
                    raise
                raise answer from error

        return await self._files.run(mapping(Progress(alters=alters)))

    def _require_root(self) -> Program[None]:
        """Rule S20: nothing is done in the empty folder of a missing mount. All calls of a program are in the
        same root, so no mount can go away between this one and the others."""
        try:
            yield IsReadOnly(self._path(IDENTIFICATION))  # Raises if it is missing.
        except OSError as error:
            problem = mapped(error, IDENTIFICATION, self._path(IDENTIFICATION), Progress())
            if not isinstance(problem, ChunkNotFound):
                raise problem from error
            raise Unavailable(
                f"the chunk root {self._root} is missing (unmounted?): it has no {IDENTIFICATION}. Mount it "
                f"and try again; if its chunks are there, or it was emptied on purpose, create that file, "
                f"empty"
            ) from None


class FileSystemChunkReader(ReadOnlyChunks, FileSystemChunkStorage):
    """The chunks below a root, read-only: every change raises ``Unsupported``.

    ``open`` changes nothing either: it does not create the root, nor remove a living owner's temporary names.
    """

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=False, concat=False)

    async def _open(self) -> None:
        await anyio.lowlevel.checkpoint()


def _length(handle: FileHandle) -> Program[int]:
    # A folder can be opened like a file, but not read.
    yield Read(handle, 0, 1)
    length: int = yield Size(handle)
    return length


def _may_match(name: str, entry: FolderEntry, prefix: str, after: str) -> bool:
    """Whether the entry is, or its folder may hold, a chunk whose name begins with ``prefix`` and is greater
    than ``after``."""
    if not entry.is_folder:
        return name.startswith(prefix) and name > after

    folder = f"{name}/"
    return (folder.startswith(prefix) or prefix.startswith(folder)) and (
        folder > after or after.startswith(folder)
    )
