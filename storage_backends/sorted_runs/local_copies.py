"""Local copies: whole runs on the local disk, so that a table is read while long-term storage is down (rule
M6).

A run is written here before it is put into long-term storage. Readers verify each part that they use; a copy
with a damaged part is replaced from long-term storage, and stays as it is while that does not answer. Any
failure of the local disk makes a read go to long-term storage. Cancellation: a file that was being written
stays under its temporary name until it is written again, or the next ``open``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import anyio
import attrs

from ..base.checksum import Buffer, crc32c
from ..base.errors import ChunkNotFound, DataCorruption, StorageFull, Unavailable
from ..base.files import FULL, Files, ListFolder, MakeFolder, Program, Unlink, sync_ancestry
from ..base.lock_table import LockTable
from ..base.statistics import counter, gauge
from .reader import RunSource, missing
from .run_entry import RunEntry
from .run_files import file_name, path_of, read_range, write_run


@attrs.frozen
class LocalCopyStatistics:
    copies: int = attrs.field(metadata=gauge("Runs that lie on the local disk."))
    copy_bytes: int = attrs.field(metadata=gauge("Their bytes."))
    local_reads: int = attrs.field(metadata=counter("Reads served by local copies."))
    remote_reads: int = attrs.field(metadata=counter("Reads served by long-term storage."))
    damaged: int = attrs.field(metadata=counter("Local copies found damaged."))


class LocalCopies(RunSource):
    def __init__(self, files: Files, folder: str, remote: RunSource) -> None:
        """``folder`` is this object's own: unknown files in it are removed."""
        self._files = files
        self._folder = folder
        self._remote = remote
        self._held: dict[str, RunEntry] = {}
        """By file name."""
        self._writing: LockTable[str] = LockTable()
        self._fetching = anyio.Lock()
        """One whole run at a time is in memory (rule M5)."""
        self._local_reads = self._remote_reads = self._damaged = 0

    @property
    def folder(self) -> str:
        return self._folder

    async def open(self, runs: Collection[RunEntry]) -> None:
        """Find the copies of ``runs``, and remove every other file and those of another length. Raises
        ``Unavailable`` if the folder cannot be used."""
        known = {file_name(run): run for run in runs}
        try:
            names = await self._files.run(_prepare(self._folder, known))
        except OSError as error:
            raise Unavailable(f"the folder of local runs {self._folder} cannot be used: {error}") from error
        self._held = {name: known[name] for name in names}

    async def add(self, run: RunEntry, pieces: Sequence[Buffer]) -> None:
        """Write a copy durably. Raises ``StorageFull`` or ``Unavailable``; an earlier copy is then as it
        was."""
        async with self._writing.holding(run.name):
            try:
                await self._files.run(write_run(self._folder, run, pieces))
            except OSError as error:
                raise _refusal(error, run) from error
        self.adopt(run)

    def adopt(self, run: RunEntry) -> None:
        """A merge has written the run's file."""
        self._held[file_name(run)] = run

    async def fetch(self, run: RunEntry) -> None:
        """Make sure that there is a copy. Raises what ``RunSource.read_range`` and ``add`` raise, and
        ``DataCorruption`` if long-term storage holds other bytes."""
        if file_name(run) in self._held:
            return

        async with self._fetching:
            if file_name(run) not in self._held:
                await self.add(run, [await self._read_whole(run)])

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

    async def distrust(self, run: RunEntry) -> bool:
        async with self._fetching:
            if file_name(run) in self._held:
                self._damaged += 1
                data = await self._read_whole(run)
                if file_name(run) in self._held:  # else it was removed meanwhile
                    await self._replace(run, data)
        return True

    def statistics(self) -> LocalCopyStatistics:
        return LocalCopyStatistics(
            copies=len(self._held),
            copy_bytes=sum(run.length for run in self._held.values()),
            local_reads=self._local_reads,
            remote_reads=self._remote_reads,
            damaged=self._damaged,
        )

    async def _replace(self, run: RunEntry, data: bytes) -> None:
        try:
            await self.add(run, [data])
        except (StorageFull, Unavailable):
            await self._drop(run)  # Reads go to long-term storage.

    async def _drop(self, run: RunEntry) -> None:
        if self._held.pop(file_name(run), None) is not None:
            await self._files.run(_unlink(path_of(self._folder, run)))

    async def _read_whole(self, run: RunEntry) -> bytes:
        self._remote_reads += 1
        try:
            data = await self._remote.read_range(run, 0, run.length)
        except ChunkNotFound as error:
            raise missing(run) from error
        if len(data) != run.length or crc32c(data) != run.crc:
            raise DataCorruption(
                "a sorted run in long-term storage does not have its checksum",
                file=run.name,
                offset=len(data),
            )
        return data


def _prepare(folder: str, known: Mapping[str, RunEntry]) -> Program[list[str]]:
    """Make the folder, remove unknown files, and return the names of known ones."""
    yield MakeFolder(folder)
    yield from sync_ancestry(folder)
    found = []
    for entry in (yield ListFolder(folder)):
        run = known.get(entry.name)
        if run is not None and run.length == entry.size:
            found.append(entry.name)
        elif not entry.is_folder:
            yield from _unlink(f"{folder}/{entry.name}")
    return found


def _unlink(path: str) -> Program[None]:
    """Remove a file that nothing needs; one that cannot be removed is found by the next ``open``."""
    try:
        yield Unlink(path)
    except OSError:
        return


def _refusal(error: OSError, run: RunEntry) -> StorageFull | Unavailable:
    if error.errno in FULL:
        return StorageFull(f"no room on the local disk for the sorted run {run.name}: {error}")
    return Unavailable(f"the sorted run {run.name} cannot be written to the local disk: {error}")
