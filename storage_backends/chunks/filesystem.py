"""``FileSystemChunkStorage``: chunks as plain files below a root folder, on a local disk or an NFS mount.

Owns: the files below its root. A chunk's file has the chunk's name and exactly the user's bytes (rule S1).
Dot names are never chunks: ``.tmp-<id>`` in the root is an object that is being written, ``.tierlog-chunks``
marks the root. Does not own: retries and deadlines (the storage actor), the threads (the file layer).

Ordering: a whole object is written to a temporary name, synced, linked to its name (which fails if that is
taken), and the folder is synced (rule S2). An append checks the size, writes at the offset and
syncs. A new folder is made durable, parent by parent, before anything is linked into it. ``delete`` syncs the
folder too, and removes folders that became empty. Cancellation: a program runs to its end, so nothing is torn
in memory; the caller does not learn how it ended. Crash: a temporary name is left, or an append's prefix.
``open`` sweeps all temporary names, those of living owners too: what they were creating then fails with
``Unavailable`` and is created anew.

Read-only is a file permission, which is looked at before each write. Below the root no symbolic link is ever
followed, so nobody who may write there can lead a chunk's bytes elsewhere; a link is no chunk, and no folder
of chunks. The root itself may be one. A missing chunk is believed only while the root's mark can be seen: an
unmounted root is ``Unavailable``, never "not found".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from ..base.checksum import Buffer
from ..base.chunk_storage import Capabilities, ChunkInfo, ChunkRange, can_begin_chunk_name
from ..base.errors import ChunkNotFound, ChunkReadOnly, InvalidArgument, Unavailable
from ..base.files import (
    Close,
    FileHandle,
    Files,
    FolderEntry,
    IsReadOnly,
    ListFolder,
    MakeFolder,
    Open,
    Program,
    Read,
    SetReadOnly,
    Size,
    Sync,
    SyncFolder,
    Write,
    sync_ancestry,
)
from ..base.world import World
from .base import BaseChunkStorage, bad_offset, size_of
from .filesystem_programs import (
    MARK,
    TEMPORARY,
    Folders,
    Progress,
    copy_ranges,
    discard,
    mapped,
    publish,
    remove,
    with_file,
)

T = TypeVar("T")


class FileSystemChunkStorage(BaseChunkStorage):
    """``root`` is an absolute path; ``threads`` bounds the calls that run at a time. ``world`` gives ids for
    temporary names."""

    def __init__(self, files: Files, root: str, world: World, *, threads: int = 8) -> None:
        super().__init__()
        if not root.startswith("/"):
            raise InvalidArgument(f"the root of a chunk storage must be an absolute path, not {root!r}")

        self._files = files.lane("chunks", threads, beneath=root.rstrip("/"))
        self._root = root.rstrip("/")
        self._world = world
        self._folders = Folders(self._root)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(append=True, concat=True)

    async def _open(self) -> None:
        await self._run("", lambda progress: self._prepare())

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
            progress.appends = True
            # The superuser's processes may write to any file; they are held to its permissions like all
            # others.
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
                yield Sync(handle)
            return offset + size

        return await self._run(name, program, alters=True)

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        def body(handle: FileHandle) -> Program[bytes]:
            data: bytes = yield Read(handle, offset, size)
            return data

        return await self._run(name, lambda progress: with_file(Open(self._path(name)), body))

    async def _delete(self, name: str) -> None:
        await self._run(name, lambda progress: remove(self._path(name), self._folders, progress), alters=True)

    async def _concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._publish(name, lambda handle: copy_ranges(handle, ranges, self._path))

    async def _set_read_only(self, name: str, read_only: bool) -> None:
        def program(progress: Progress) -> Program[None]:
            # A folder has permissions too, and is no chunk.
            yield from with_file(Open(self._path(name)), _length)
            yield SetReadOnly(self._path(name), read_only)

        await self._run(name, program, alters=True)

    async def _list(self, prefix: str, after: str) -> AsyncGenerator[ChunkInfo, None]:
        pending = [("", FolderEntry("", is_folder=True, size=0))]
        while pending:
            path, entry = pending.pop()
            if not entry.is_folder:
                yield ChunkInfo(path, entry.size)
                continue

            inside = await self._entries(path)
            pending.extend(
                reversed([(name, each) for name, each in inside if _may_match(name, each, prefix, after)])
            )

    async def _used_space(self) -> int:
        """The sum of all chunks' lengths; costs a walk over all folders."""
        return sum([info.length async for info in self._list("", "")])

    # --- inside ----------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _prepare(self) -> Program[None]:
        yield MakeFolder(self._root)
        entries: Sequence[FolderEntry] = yield ListFolder(self._root)
        for entry in entries:
            if entry.name.startswith(TEMPORARY):
                yield from discard(f"{self._root}/{entry.name}")
        if any(entry.name == MARK for entry in entries):
            return

        # The mark is made last: where it is, the root was durable before the first chunk, whoever made it and
        # whatever failed then.
        yield from sync_ancestry(self._root)
        try:
            handle = yield Open(f"{self._root}/{MARK}", write=True, create=True)
        except FileExistsError:
            return  # Another process is opening it too.
        yield Close(handle)
        yield SyncFolder(self._root)

    async def _publish(self, name: str, fill: Callable[[FileHandle], Program[int]]) -> int:
        temporary = f"{self._root}/{TEMPORARY}{self._world.new_id()}"
        return await self._run(
            name, lambda progress: publish(self._path(name), temporary, fill, self._folders, progress)
        )

    async def _entries(self, path: str) -> Sequence[tuple[str, FolderEntry]]:
        """(chunk or folder name, entry) of one folder, in the order of the chunk names below them.

        A name that no chunk can have is a stranger's, and its folder may be closed to us: ``lost+found`` of a
        root that is a mount point.
        """

        def program(progress: Progress) -> Program[Sequence[FolderEntry]]:
            try:
                entries: Sequence[FolderEntry] = yield ListFolder(f"{self._root}/{path}".rstrip("/"))
            except (FileNotFoundError, NotADirectoryError):
                if path:
                    return []  # It was removed meanwhile.
                raise
            return entries

        found = await self._run(path, program)
        # "/" sorts after "-" and ".": a folder takes its place with the slash that its chunks have there.
        found = sorted(found, key=lambda entry: f"{entry.name}/" if entry.is_folder else entry.name)
        parent = f"{path}/" if path else ""
        return [(parent + entry.name, entry) for entry in found if can_begin_chunk_name(parent + entry.name)]

    async def _run(self, name: str, program: Callable[[Progress], Program[T]], *, alters: bool = False) -> T:
        """Drive a program; an ``OSError`` becomes the error that says what to do."""
        progress = Progress(alters=alters)
        try:
            return await self._files.run(program(progress))
        except (OSError, ChunkNotFound) as error:
            answer = mapped(error, name, progress) if isinstance(error, OSError) else error
            if isinstance(answer, ChunkNotFound) and not await self._root_is_there():
                raise Unavailable(
                    f"the chunk root {self._root} is not there (unmounted?); mount it and try again"
                ) from error

            if answer is error:
                raise
            raise answer from error

    async def _root_is_there(self) -> bool:
        try:
            await self._files.run(with_file(Open(f"{self._root}/{MARK}"), _length))
        except OSError:
            return False
        return True


def _length(handle: FileHandle) -> Program[int]:
    # A folder opens like a file; reading from it does not work, which tells them apart.
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
