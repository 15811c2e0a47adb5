"""The local chunk cache, in seeds of their own: one folder on the host's disk, which all processes share, in
front of an object store (rules K1 to K6). It survives processes, loses what a power loss takes, and is
removed, damaged, or cannot be used, at any time. Readers must not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from unittest import mock

from tierlog.storage_backends.chunks import cached_blocks

from .disk import BLOCK, SimulatedDisk
from .faults import Fault, Kind, Target, Window
from .invariants import Broken
from .plan import FaultKind, PlannedFault
from .records import OWN_CHUNKS
from .world import CACHE, Site

FOREIGN = (f"{CACHE}/notes.txt", f"{CACHE}/containers+0000+.of-another-program.blocks")
"""Files that are not the cache's: no chunk can have the name of the second one."""
_FAILING = ("Open", "Read", "Write", "Unlink", "ListFolder", "MakeFolder", "FreeSpace")


@contextmanager
def small_blocks() -> Iterator[None]:
    """With chunks of several blocks of the cache, and files of a few kilobytes."""
    with mock.patch.multiple(cached_blocks, BLOCK=512, _BLOCKS_MAX=64, _TABLE_BYTES=512):
        yield


def files_of(disk: SimulatedDisk) -> list[str]:
    return [path for path in disk.files_below(f"{CACHE}/") if path not in FOREIGN]


def leave_foreign(site: Site, random: Random) -> None:
    """In half of the worlds with a cache, files of others are in its folder before the first opening."""
    if site.kind.chunk_cache and random.random() < 0.5:
        for path in FOREIGN:
            site.disk.put(path, b"not yours")
        site.has_foreign_files = True


class ChunkCacheFaults:
    def __init__(self, site: Site) -> None:
        self._site = site
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {FaultKind.CHUNK_CACHE: self._strike}

    def _strike(self, fault: PlannedFault) -> None:
        random = Random(f"fault {fault.chance}")
        strike = random.choice(
            (
                self._remove,
                self._remove,
                self._damage,
                self._damage,
                self._exchange,
                self._fail,
            )
        )
        strike(fault, random)

    def _remove(self, fault: PlannedFault, random: Random) -> None:
        """One file, all of them, or the folder too."""
        disk, paths = self._site.disk, files_of(self._site.disk)
        for path in paths if random.random() < 0.6 else random.sample(paths, min(1, len(paths))):
            disk.unlink(path)
        if not disk.files_below(f"{CACHE}/") and disk.exists(CACHE) and random.random() < 0.5:
            disk.remove_folder(CACHE)

    def _damage(self, fault: PlannedFault, random: Random) -> None:
        disk, paths = self._site.disk, files_of(self._site.disk)
        if not paths or not (size := len(disk.content(path := random.choice(paths)))):
            return
        match random.choice(("flipped", "cut", "torn")):
            case "flipped":
                self._site.damage.flip_file(path, random.randrange(8 * size))
            case "cut":
                self._site.damage.cut_file(path, random.randrange(size))
            case _:
                begin, length = random.randrange(size), random.choice((1, 100, 512))
                content = disk.content(path)
                disk.replace(path, content[:begin] + bytes(length) + content[begin + length :])

    def _exchange(self, fault: PlannedFault, random: Random) -> None:
        """A file has the bytes of another one."""
        disk, paths = self._site.disk, files_of(self._site.disk)
        if len(paths) > 1:
            one, other = random.sample(paths, 2)
            disk.replace(one, disk.content(other))

    def _fail(self, fault: PlannedFault, random: Random) -> None:
        """The folder cannot be used for a while, or the disk has no room for it."""
        kind = random.choice((Kind.FULL, Kind.BEFORE, Kind.AFTER, Kind.PARTIAL))
        verbs = random.sample(_FAILING, random.randint(1, len(_FAILING)))
        if kind in (Kind.FULL, Kind.PARTIAL):
            verbs = ["Write"]
        window = Window(min(fault.seconds, 20.0), random.choice((0.3, 1.0)))
        self._site.faults.add(
            Fault(Target.FILES, kind, window, tuple(verbs), part=CACHE, keep=random.choice((1, 100, 512)))
        )


def leave_unlisted(site: Site) -> None:
    """A chunk that no record names is cached, from before somebody deleted it."""
    if site.kind.chunk_cache:
        name = f"{OWN_CHUNKS}0000/{1:016x}/{1:016x}-{0:016x}-{'f' * 32}"
        site.disk.put(f"{CACHE}/{cached_blocks.file_name(name)}", bytes(600))


def check_cache(site: Site) -> None:
    """Nothing is wrong any more, and the containers of one process have reconciled it: what is cached is in
    the storage, and within the bound."""
    if not site.kind.chunk_cache:
        return

    if site.has_foreign_files and not all(map(site.disk.exists, FOREIGN)):
        raise Broken("it does not hold that files of others stay in the folder of the cache")
    held = {path: site.disk.find(path).blocks * BLOCK for path in files_of(site.disk)}
    chunks = {path.rpartition("/")[2].removesuffix(".blocks").replace("+", "/") for path in held}
    if left := sorted(chunks - site.chunk_contents().keys()):
        raise Broken(f"it does not hold that the cache is reconciled\nleft over: {', '.join(left)}")
    total, bound = sum(held.values()), site.kind.chunk_cache
    if total > bound:
        raise Broken(f"it does not hold that the cache is bounded\n{total} bytes, of {bound}")
