"""When two simulated disks are the same: for everybody at any time, or for a process that runs on them until
the next power loss."""

from __future__ import annotations

import hashlib

from simulation.disk import Entry, SimulatedDisk, SimulatedInode


class _Numbers(dict[SimulatedInode, int]):
    """Files by the order in which they are met: names that lead to one file have one number."""

    def of(self, entries: dict[str, Entry]) -> list[tuple[str, int | None]]:
        return [(name, self.one(entries[name])) for name in sorted(entries)]

    def one(self, entry: Entry) -> int | None:
        return None if entry is None else self.setdefault(entry, len(self))


def fingerprint(disk: SimulatedDisk) -> bytes:
    """Equal for two disks if and only if nobody can tell them apart, now or after a power loss."""
    files = _Numbers()
    folders = [
        (
            path,
            files.of(folder.names),
            files.of(folder.durable),
            [
                ([(name, files.one(found)) for name, found in change.sets], change.removes)
                for change in folder.pending
            ],
        )
        for path, folder in sorted(disk._folders.items())
    ]
    hidden = [
        (
            len(file.durable),
            [(offset, None if data is None else len(data)) for offset, data in file.pending],
            0 if disk.capacity is None else file.untrimmed,
        )
        for file in files
    ]
    return _digest(
        (folders, hidden, sorted(disk._moved.items())),
        disk,
        files,
        [part for file in files for part in _unseen(file)],
    )


def seen(disk: SimulatedDisk) -> bytes:
    """Equal for two disks if and only if no process can tell them apart before a power loss."""
    files = _Numbers()
    return _digest(
        [(path, files.of(folder.names)) for path, folder in sorted(disk._folders.items())], disk, files, []
    )


def _unseen(file: SimulatedInode) -> list[bytes | bytearray]:
    return [file.durable, *(data for _, data in file.pending if data is not None)]


def _digest(names: object, disk: SimulatedDisk, files: _Numbers, more: list[bytes | bytearray]) -> bytes:
    with_blocks = disk.capacity is not None
    shape = [(len(file.cache), file.read_only, file.blocks if with_blocks else 0) for file in files]
    digest = hashlib.sha256(repr((names, shape, disk.capacity)).encode())
    for content in (*(file.cache for file in files), *more):
        digest.update(content)
    return digest.digest()
