"""Local copies: whole runs on the local disk, so that a table is read while long-term storage is down (rule
M6).

A run is written here before it is put into long-term storage. Readers verify each part that they use; a copy
with a damaged part is replaced from long-term storage, and stays as it is while that does not answer. Any
failure of the local disk makes a read go to long-term storage. Cancellation: a file that was being written
stays under its temporary name until it is written again, or the next ``open``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from ..base.checksum import Buffer
from ..base.errors import ChunkNotFound, DataCorruption, StorageFull, Unavailable
from ..base.files import FULL, Files, FreeSpace, ListFolder, Program, make_folder
from ..base.lock_table import LockTable
from ..base.os_errors import explain, reason_of
from .parts import crc32c_in_slices, parts_of
from .reader import RunSource, missing
from .run_entry import RunEntry
from .run_files import (
    file_name,
    is_own,
    path_of,
    read_range,
    remove_file,
    remove_outputs,
    write_run,
)

if TYPE_CHECKING:
    from .statistics import LocalCopyStatistics


class LocalCopies(RunSource):
    def __init__(self, files: Files, folder: str, remote: RunSource, spare: int = 0) -> None:
        """``folder`` is this object's own: files of runs in it that are unknown are removed, others are left
        alone. Fetches and merges leave ``spare`` bytes free on its disk."""
        self._files = files
        self._folder = folder
        self._remote = remote
        self._spare = spare
        self._held: dict[str, RunEntry] = {}
        """Entries of the copies by file name."""
        self._writing: LockTable[str] = LockTable()
        self._fetching = anyio.Lock()
        """One whole run at a time is in memory (rule M5)."""
        self._has_folder = False
        """Whether it is known to exist, durably."""
        self._local_reads = self._remote_reads = self._damaged = 0

    @property
    def folder(self) -> str:
        return self._folder

    async def open(
        self, runs: Collection[RunEntry], may_remove: Callable[[str], bool] = lambda name: True
    ) -> None:
        """Find the copies of ``runs``, and remove those of other runs and those of another length, unless
        ``may_remove(file name)`` is false. Raises ``Unavailable`` if the folder cannot be used."""
        known = {file_name(run): run for run in runs}
        # A link may not lead out of the log's folder: files are removed there.
        files = self._files.lane("copies", nofollow_root=self._folder.rpartition("/")[0])
        try:
            names = await files.run(_prepare(self._folder, known, may_remove))
        except OSError as error:
            raise Unavailable(
                f"the folder of local runs cannot be used: {explain(error, self._folder)}"
            ) from error
        self._held = {name: known[name] for name in names}

    async def add(self, run: RunEntry, pieces: Sequence[Buffer]) -> None:
        """Write a copy durably. Raises ``StorageFull``, ``Unavailable``, or ``DataCorruption`` if a folder
        has its name; an earlier copy is then as it was."""
        async with self._writing.holding(run.name):
            try:
                await self._ensure_folder()
                await self._files.run(write_run(self._folder, run, pieces))
            except OSError as error:
                self._has_folder = False  # It may have been removed; the next attempt makes it again.
                raise _refusal(error, run) from error
        self.note_written(run)

    def note_written(self, run: RunEntry) -> None:
        """A merge has written the run's file."""
        self._held[file_name(run)] = run

    async def check_room(self, size: int) -> None:
        """Raises ``StorageFull`` unless the disk has room for ``size`` bytes besides the spare ones (W6)."""
        try:
            await self._ensure_folder()
            free = await self._files.run(_free_space(self._folder))
        except OSError as error:
            self._has_folder = False
            raise Unavailable(
                f"the folder of local runs cannot be used: {explain(error, self._folder)}"
            ) from error
        if free < size + self._spare:
            raise StorageFull(
                f"merging or fetching sorted runs needs {size + self._spare} bytes free on the local disk, "
                f"which has {free}: it is done once there is room"
            )

    async def has_spare(self) -> bool:
        """Whether the spare bytes are free."""
        with suppress(StorageFull, Unavailable):
            await self.check_room(0)
            return True
        return False

    async def _ensure_folder(self) -> None:
        if not self._has_folder:
            await self._files.run(make_folder(self._folder))
            self._has_folder = True

    async def remove_outputs(self, name: str) -> None:
        """Remove what a failed merge has written. What cannot be removed is left to the next ``open``."""
        with suppress(OSError):
            await self._files.run(remove_outputs(self._folder, name))

    async def fetch(self, run: RunEntry) -> None:
        """Make sure that there is a copy. Raises what ``RunSource.read_range``, ``check_room`` and ``add``
        raise, and ``DataCorruption`` if long-term storage lacks the run or holds other bytes."""
        if file_name(run) in self._held:
            return

        async with self._fetching:
            if file_name(run) not in self._held:
                await self.check_room(run.length)
                try:
                    pieces = await self._read_whole(run)
                except ChunkNotFound as error:
                    raise DataCorruption(
                        "a sorted run that the manifest names is missing in long-term storage", file=run.name
                    ) from error
                await self.add(run, pieces)

    async def remove(self, runs: Collection[RunEntry]) -> None:
        """Remove the copies of runs that left the manifest, or that will never be in it. What cannot be
        removed is left to the next ``open``."""
        for run in runs:
            async with self._writing.holding(run.name):
                await self._drop(run)

    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        if file_name(run) in self._held:
            try:
                data = await self._files.run(read_range(path_of(self._folder, run), offset, length))
            except FileNotFoundError:
                self._held.pop(file_name(run), None)
            except OSError:
                pass  # It may be too many open files: the copy stays.
            else:
                self._local_reads += 1
                return data

        self._remote_reads += 1
        return await self._remote.read_range(run, offset, length)

    async def read_pieces(self, run: RunEntry) -> list[bytes]:
        """All bytes of a run. Errors as for ``read_range``."""
        return [await self.read_range(run, *part) for part in parts_of(run.length)]

    async def replace_damaged(self, run: RunEntry) -> bool:
        async with self._fetching:
            if file_name(run) in self._held:
                self._damaged += 1
                try:
                    pieces = await self._read_whole(run)
                except ChunkNotFound as error:
                    raise missing(run) from error
                if file_name(run) in self._held:  # else it was removed meanwhile
                    await self._replace(run, pieces)
        return True

    def statistics(self) -> LocalCopyStatistics:
        from .statistics import LocalCopyStatistics

        return LocalCopyStatistics(
            copies=len(self._held),
            copy_bytes=sum(run.length for run in self._held.values()),
            local_reads=self._local_reads,
            remote_reads=self._remote_reads,
            damaged=self._damaged,
        )

    async def _replace(self, run: RunEntry, pieces: Sequence[Buffer]) -> None:
        try:
            await self.add(run, pieces)
        except (StorageFull, DataCorruption, Unavailable):
            await self._drop(run)  # Reads go to long-term storage.

    async def _drop(self, run: RunEntry) -> None:
        self._held.pop(file_name(run), None)
        # Also if it is not held: its file may have its name, and not durably.
        await self._files.run(remove_file(path_of(self._folder, run)))

    async def _read_whole(self, run: RunEntry) -> list[bytes]:
        self._remote_reads += 1
        pieces = [await self._remote.read_range(run, *part) for part in parts_of(run.length)]
        length = sum(map(len, pieces))
        if length != run.length or await crc32c_in_slices(pieces) != run.crc:
            raise DataCorruption(
                "a sorted run in long-term storage does not have its checksum",
                file=run.name,
                offset=min(length, run.length) if length != run.length else 0,
            )
        return pieces


class ForeignCopies(RunSource):
    """The local copies of a folder that another process may have open: they are read, and never changed."""

    def __init__(self, files: Files, folder: str, remote: RunSource) -> None:
        self._files = files
        self._folder = folder
        self._remote = remote
        self._damaged: set[str] = set()

    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        if run.name not in self._damaged:
            with suppress(OSError):
                return await self._files.run(read_range(path_of(self._folder, run), offset, length))

        return await self._remote.read_range(run, offset, length)

    async def replace_damaged(self, run: RunEntry) -> bool:
        # Once only: the next read comes from long-term storage, and there is no third source.
        is_first = run.name not in self._damaged
        self._damaged.add(run.name)
        return is_first


def _free_space(folder: str) -> Program[int]:
    free: int = yield FreeSpace(folder)
    return free


def _prepare(
    folder: str, known: Mapping[str, RunEntry], may_remove: Callable[[str], bool]
) -> Program[list[str]]:
    """Remove the copies of unknown runs, not files of others, and return the names of known ones."""
    found: list[str] = []
    try:
        entries = yield ListFolder(folder)
    except FileNotFoundError:
        return found

    for entry in entries:
        run = known.get(entry.name)
        # The length only: readers verify what they read, and an opening does not wait for all of it.
        if run is not None and run.length == entry.size and not entry.is_folder:
            found.append(entry.name)
        elif not entry.is_folder and is_own(entry.name) and may_remove(entry.name):
            yield from remove_file(f"{folder}/{entry.name}")
    return found


def _refusal(error: OSError, run: RunEntry) -> StorageFull | DataCorruption | Unavailable:
    if error.errno in FULL:
        return StorageFull(f"no room on the local disk for the sorted run {run.name}: {reason_of(error)}")
    if error.errno == errno.EISDIR:  # others are fetched and merged all the same
        reason = f"a folder has the name of a run's local copy, remove it: {reason_of(error)}"
        return DataCorruption(reason, file=run.name)
    return Unavailable(f"the sorted run {run.name} cannot be written to the local disk: {reason_of(error)}")
