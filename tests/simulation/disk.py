"""A disk in memory that loses what a real one may lose. No I/O, no waiting.

* A write is in the page cache at once. Until the file is synced, a power loss keeps or drops each 512-byte
  sector of it on its own (dropped, reordered and torn writes), and the file's length is anything that the
  kept sectors allow.
* A sync that fails marks the pages clean: some sectors reached the disk, the others stay readable until the
  power loss, and a later sync that "succeeds" does not write them.
* A new, linked, renamed or unlinked name is durable once its folder is synced; until then a power loss keeps
  or drops each on its own. A failed sync treats them as it does pages.
* A folder that no synced entry leads to is gone with all it holds.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from random import Random
from typing import Literal

import attrs

SECTOR = 512
BLOCK = 4096

Keep = Literal["random", "none", "all"]
"""What a power loss keeps of what was not synced."""


Piece = tuple[int, bytes | None]
"""A piece of a file: (offset, bytes of one sector). Without bytes: the file is at least so long; None: it
ends here."""


@attrs.define(eq=False)
class SimulatedInode:
    """One file's content, in the page cache and on the platter."""

    number: int
    cache: bytearray = attrs.field(factory=bytearray)
    durable: bytearray = attrs.field(factory=bytearray)
    pending: list[Piece] = attrs.field(factory=list)
    """Written and not synced, in order."""
    blocks: int = 0
    untrimmed: int = 0
    """The blocks that it has again if a power loss forgets a trim."""
    modified: int = 0
    """Of all files, the one modified last has the highest."""
    read_only: bool = False
    holder: object = None
    """Who holds the flock."""
    handles: int = 0

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.cache):
            self.cache.extend(bytes(end - len(self.cache)))
        self.cache[offset:end] = data
        self.pending.extend(_sectors(offset, data))
        self.blocks = max(self.blocks, _blocks(end))

    def find_data(self, offset: int) -> int:
        """The first block, or the offset in it, that has anything but zeros."""
        for start in range(offset // BLOCK * BLOCK, len(self.cache), BLOCK):
            if any(self.cache[start : start + BLOCK]):
                return max(start, offset)
        return max(offset, len(self.cache))

    def extend(self, size: int) -> None:
        if size > len(self.cache):
            self.cache.extend(bytes(size - len(self.cache)))
            self.pending.append((size, b""))

    def trim(self, size: int) -> None:
        if size > len(self.cache):
            return
        if size < len(self.cache):
            del self.cache[size:]
            self.pending.append((size, None))
        self.untrimmed = max(self.untrimmed, self.blocks)
        self.blocks = _blocks(size)

    def sync(self) -> None:
        self._settle(self.pending)
        self.untrimmed = 0

    def lose_sync(self, random: Random) -> None:
        """A failed sync: some sectors arrive, and no page is dirty any more."""
        self._settle([piece for piece in self.pending if random.random() < 0.5])

    def _settle(self, pieces: list[Piece]) -> None:
        _apply(self.durable, pieces)
        self.pending = []

    def after_power_loss(self, keep: Keep, random: Random) -> bytearray:
        if keep == "none":
            return bytearray(self.durable)
        kept = [piece for piece in self.pending if keep == "all" or random.random() < 0.5]
        content = bytearray(self.durable)
        _apply(content, kept)
        if keep == "random" and self.pending and random.random() < 0.25:
            # The length may be on the disk without the data.
            content.extend(
                bytes(max(0, max(offset + len(data or b"") for offset, data in self.pending) - len(content)))
            )
        return content


def _sectors(offset: int, data: bytes) -> Iterator[Piece]:
    start = 0
    while start < len(data):
        size = min(len(data) - start, SECTOR - (offset + start) % SECTOR)
        yield offset + start, data[start : start + size]
        start += size


def _apply(content: bytearray, pieces: list[Piece]) -> None:
    for offset, data in pieces:
        if data is None:
            del content[offset:]
            continue
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


Entry = SimulatedInode | None
"""What a name leads to: a file, or None for a folder."""


@attrs.frozen
class _Change:
    """One not yet durable change of a folder; a rename inside it is one change, so that no power loss shows
    half of it."""

    sets: tuple[tuple[str, Entry], ...] = ()
    removes: tuple[str, ...] = ()
    identity: object = None
    """The identity of the folder that a name is set to, if it is one."""

    def apply(self, names: dict[str, Entry], identities: dict[str, object] | None = None) -> None:
        for name in self.removes:
            names.pop(name, None)
        names.update(self.sets)
        if identities is not None:
            identities.update({name: self.identity for name, entry in self.sets if entry is None})


@attrs.define(eq=False)
class _Folder:
    names: dict[str, Entry] = attrs.field(factory=dict)
    durable: dict[str, Entry] = attrs.field(factory=dict)
    pending: list[_Change] = attrs.field(factory=list)
    identities: dict[str, object] = attrs.field(factory=dict)
    """The identities of the folders that durable names lead to: one that was removed and made again is
    another folder."""
    identity: object = attrs.field(factory=object)
    identities_after: dict[str, object] = attrs.field(factory=dict)
    """``identities`` behind the last power loss."""

    def change(self, change: _Change) -> None:
        change.apply(self.names)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable, self.identities)
        self.pending = []

    def lose_sync(self, random: Random) -> None:
        """A failed sync: some changes arrive, and a later sync writes none of the others."""
        for change in self.pending:
            if random.random() < 0.5:
                change.apply(self.durable, self.identities)
        self.pending = []

    def after_power_loss(self, keep: Keep, random: Random) -> dict[str, Entry]:
        names = dict(self.durable)
        self.identities_after = dict(self.identities)
        for change in self.pending:
            if keep == "all" or (keep == "random" and random.random() < 0.5):
                change.apply(names, self.identities_after)
        return names


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder or "/", name


class SimulatedDisk:
    """``capacity``: bytes of file data it holds, None for no limit. ``random`` decides what a power loss
    keeps."""

    def __init__(self, random: Random, capacity: int | None = None) -> None:
        self.random = random
        self.capacity = capacity
        self.dead = False
        """A power loss happened: nothing on this disk moves any more; ``crash()`` gives the disk after it."""
        self._folders: dict[str, _Folder] = {"/": _Folder()}
        self._moved: dict[str, str] = {}
        """Where folders are that had another path before: a power loss may forget the move."""
        self._inodes = self._touched = 0
        self._open: list[SimulatedInode] = []
        """Files that are held open, so that an unlinked one keeps its blocks until it is closed."""
        self._lock_waiters: list[Callable[[], None]] = []
        self._copies: dict[int, SimulatedInode] = {}

    # --- the end of the world ---

    def lose_power(self) -> None:
        self.dead = True
        self.wake_lock_waiters()

    def crash(self, keep: Keep = "random") -> SimulatedDisk:
        """The disk after a power loss now. This one is dead from here on."""
        self.lose_power()
        after = SimulatedDisk(self.random, self.capacity)
        survivors: dict[SimulatedInode, SimulatedInode] = {}
        self._carry("/", after, survivors, keep)
        return after

    def _carry(
        self, path: str, after: SimulatedDisk, survivors: dict[SimulatedInode, SimulatedInode], keep: Keep
    ) -> None:
        folder = after._folders[path] = _Folder()
        before = self._folders[self._moved.get(path, path)]
        for name, entry in before.after_power_loss(keep, self.random).items():
            if entry is not None:
                folder.names[name] = folder.durable[name] = after._revive(entry, survivors, keep)
                continue

            folder.names[name] = folder.durable[name] = None
            child = _join(path, name)
            found = self._folders.get(self._moved.get(child, child))
            if found is not None and before.identities_after[name] is found.identity:
                self._carry(child, after, survivors, keep)
            else:
                after._folders[child] = _Folder()  # removed, and the removal was not durable
            folder.identities[name] = after._folders[child].identity

    def _revive(
        self, inode: SimulatedInode, survivors: dict[SimulatedInode, SimulatedInode], keep: Keep
    ) -> SimulatedInode:
        if inode not in survivors:
            content = inode.after_power_loss(keep, self.random)
            self._inodes += 1
            blocks = max(inode.blocks, 0 if keep == "all" else inode.untrimmed, _blocks(len(content)))
            copy = SimulatedInode(
                self._inodes, bytearray(content), content, blocks=blocks, read_only=inode.read_only
            )
            survivors[inode] = copy
        return survivors[inode]

    # --- copies, for tests ---

    def copy(self) -> SimulatedDisk:
        """The same disk once more: page cache, platter and all that lies between them. Nobody holds a file or
        a lock on it."""
        after, files = SimulatedDisk(self.random, self.capacity), dict[SimulatedInode, SimulatedInode]()

        def twin(entry: Entry) -> Entry:
            if entry is not None and entry not in files:
                files[entry] = attrs.evolve(
                    entry,
                    cache=bytearray(entry.cache),
                    durable=bytearray(entry.durable),
                    pending=list(entry.pending),
                    holder=None,
                    handles=0,
                )
            return entry and files[entry]

        def names(entries: dict[str, Entry]) -> dict[str, Entry]:
            return {name: twin(entry) for name, entry in entries.items()}

        for path, folder in self._folders.items():
            changes = [
                _Change(tuple(names(dict(c.sets)).items()), c.removes, c.identity) for c in folder.pending
            ]
            after._folders[path] = _Folder(
                names(folder.names), names(folder.durable), changes, dict(folder.identities), folder.identity
            )
        after._inodes, after._moved = self._inodes, dict(self._moved)
        after._copies = {inode.number: copy for inode, copy in files.items()}
        return after

    def copy_of(self, inode: SimulatedInode) -> SimulatedInode | None:
        """The file of this copy that was ``inode`` on the copied disk; None if no name led to it."""
        return self._copies.get(inode.number)

    # --- bytes from outside, for tests ---

    def content(self, path: str) -> bytes:
        """The file as the page cache shows it."""
        return bytes(self.find(path).cache)

    def replace(self, path: str, data: bytes) -> None:
        """Change a file behind everybody's back, durably: rot, or a careless administrator."""
        inode = self.find(path)
        inode.cache, inode.durable, inode.pending = bytearray(data), bytearray(data), []

    def put(self, path: str, data: bytes, *, read_only: bool = False) -> None:
        """A file that was always there: it and the way to it are durable."""
        folder, _ = _split(path)
        self.make_folder(folder)
        inode = self.create(path)
        self.write(inode, 0, data)
        inode.sync()
        inode.read_only = read_only
        while True:
            self.folder(folder).sync()
            if folder == "/":
                return
            folder, _ = _split(folder)

    def files_below(self, root: str) -> list[str]:
        """The paths of all files in the folder ``root`` and the folders in it, sorted; none if it is
        missing."""
        top = root.rstrip("/")
        inside = [
            (path, folder)
            for path, folder in self._folders.items()
            if path == (top or "/") or path.startswith(f"{top}/")
        ]
        return sorted(
            _join(path, name)
            for path, folder in inside
            for name, entry in folder.names.items()
            if entry is not None
        )

    # --- locks ---

    def unlock(self, inode: SimulatedInode, holder: object) -> None:
        if inode.holder is holder:
            inode.holder = None
            self.wake_lock_waiters()

    def call_at_unlock(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, when any lock becomes free or the end has come for somebody who may be waiting
        for one."""
        self._lock_waiters.append(wake)

    def wake_lock_waiters(self) -> None:
        waiters, self._lock_waiters = self._lock_waiters, []
        for wake in waiters:
            wake()

    # --- names ---

    def folder(self, path: str) -> _Folder:
        found = self._folders.get(path.rstrip("/") or "/")
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return found

    def find(self, path: str) -> SimulatedInode:
        folder, name = _split(path)
        entry = self.folder(folder).names.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return entry

    def exists(self, path: str) -> bool:
        """Whether there is a file of that name."""
        folder, name = _split(path)
        return folder in self._folders and self._folders[folder].names.get(name) is not None

    def create(self, path: str) -> SimulatedInode:
        folder, name = _split(path)
        names = self.folder(folder)
        self._refuse_existing(names, name, path)
        if self.free() < BLOCK:
            raise OSError(errno.ENOSPC, "no space for a new name", path)
        self._inodes += 1
        inode = SimulatedInode(self._inodes)
        self.touch(inode)
        names.change(_Change(sets=((name, inode),)))
        return inode

    def touch(self, inode: SimulatedInode) -> None:
        self._touched += 1
        inode.modified = self._touched

    def link(self, source: str, target: str) -> None:
        inode = self.find(source)
        folder, name = _split(target)
        names = self.folder(folder)
        self._refuse_existing(names, name, target)
        names.change(_Change(sets=((name, inode),)))

    def rename(self, source: str, target: str) -> None:
        """A folder only to a name that is free."""
        (from_folder, from_name), (to_folder, to_name) = _split(source), _split(target)
        entry: Entry = None
        identity: object = None
        if source in self._folders:
            identity = self._folders[source].identity
            self._refuse_existing(self.folder(to_folder), to_name, target)
            self._move_folder(source, target)
        else:
            entry = self.find(source)
        if from_folder == to_folder:
            self.folder(to_folder).change(
                _Change(sets=((to_name, entry),), removes=(from_name,), identity=identity)
            )
        else:
            self.folder(to_folder).change(_Change(sets=((to_name, entry),), identity=identity))
            self.folder(from_folder).change(_Change(removes=(from_name,)))

    def _move_folder(self, source: str, target: str) -> None:
        for path in [path for path in self._folders if f"{path}/".startswith(f"{source}/")]:
            moved = target + path.removeprefix(source)
            self._folders[moved] = self._folders.pop(path)
            self._moved.pop(moved, None)
            self._moved[path] = moved

    def unlink(self, path: str) -> None:
        self.find(path)
        folder, name = _split(path)
        self.folder(folder).change(_Change(removes=(name,)))

    def make_folder(self, path: str) -> None:
        if path.rstrip("/") in ("", *self._folders):
            return
        parent, name = _split(path.rstrip("/"))
        self.make_folder(parent)
        self._refuse_existing(self._folders[parent], name, path)
        new = self._folders[path.rstrip("/")] = _Folder()
        self._folders[parent].change(_Change(sets=((name, None),), identity=new.identity))
        self._moved.pop(path.rstrip("/"), None)

    def remove_folder(self, path: str) -> None:
        if path == "/":
            raise OSError(errno.EBUSY, "the root cannot be removed", path)
        if self.folder(path).names:
            raise OSError(errno.ENOTEMPTY, "folder is not empty", path)
        parent, name = _split(path.rstrip("/"))
        self.folder(parent).change(_Change(removes=(name,)))
        del self._folders[path.rstrip("/")]

    def _refuse_existing(self, folder: _Folder, name: str, path: str) -> None:
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, "name is taken", path)

    # --- space ---

    def hold(self, inode: SimulatedInode) -> None:
        inode.handles += 1
        if inode.handles == 1:
            self._open.append(inode)

    def release(self, inode: SimulatedInode) -> None:
        inode.handles -= 1
        if not inode.handles:
            self._open.remove(inode)

    def free(self) -> int:
        """Bytes of free blocks; a terabyte if there is no limit."""
        return 1 << 40 if self.capacity is None else max(0, self.capacity - self.used())

    def used(self) -> int:
        """Bytes of blocks that files hold."""
        named = [
            entry for folder in self._folders.values() for entry in folder.names.values() if entry is not None
        ]
        used = {inode.number: inode.blocks for inode in [*named, *self._open]}
        return sum(used.values()) * BLOCK

    def write(self, inode: SimulatedInode, offset: int, data: bytes) -> None:
        """Write what fits; ``ENOSPC`` if that is not all."""
        room = inode.blocks * BLOCK + self.free() // BLOCK * BLOCK - offset
        fits = data[: max(0, room)]
        if fits:
            inode.write(offset, fits)
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")

    def allocate(self, inode: SimulatedInode, end: int) -> None:
        if (_blocks(end) - inode.blocks) * BLOCK > self.free():
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")
        inode.blocks = max(inode.blocks, _blocks(end))


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"
