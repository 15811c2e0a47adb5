"""Damage that no call causes: a disk that fills up, bits and tails of stored files and chunks.

A log is damaged only while no process runs: what a living process has open it may have read already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .settings import ChunksKind

if TYPE_CHECKING:
    from .world import Site

Undo = Callable[[], None]
"""Restores what was there; nothing if it has vanished meanwhile."""


class Damage:
    def __init__(self, site: Site) -> None:
        self._site = site

    def fill_disk(self, room: int = 0) -> Undo:
        """Other files leave ``room`` bytes of the disk."""
        disk = self._site.disk
        before = disk.capacity
        disk.capacity = (disk.used() if before is None else before - disk.free()) + room
        self._site.trace.note("disk", f"full but for {room} bytes")

        def undo() -> None:
            # After a power loss it is another disk.
            self._site.disk.capacity = before
            self._site.trace.note("disk", "has room again")

        return undo

    def flip_chunk(self, name: str, bit: int) -> Undo:
        return self._change_chunk(name, lambda data: flipped(data, bit), f"bit {bit} flipped")

    def cut_chunk(self, name: str, length: int) -> Undo:
        return self._change_chunk(name, lambda data: data[:length], f"cut to {length} bytes")

    def flip_file(self, path: str, bit: int) -> Undo:
        return self._change_file(path, lambda data: flipped(data, bit), f"bit {bit} flipped")

    def cut_file(self, path: str, length: int) -> Undo:
        return self._change_file(path, lambda data: data[:length], f"cut to {length} bytes")

    def _change_chunk(self, name: str, change: Callable[[bytes], bytes], what: str) -> Undo:
        site = self._site
        if site.kind.chunks is ChunksKind.FOLDER:
            return self._change_file(f"/data/lts/{name}", change, what)

        chunk = site.chunk_state.chunks[name]
        before = bytes(chunk.data)
        chunk.data[:] = after = change(before)
        site.trace.note("damage", f"chunk {name} {what}")

        def undo() -> None:
            # What was appended since stays.
            if site.chunk_state.chunks.get(name) is chunk:
                chunk.data[: len(after)] = before
                site.trace.note("damage", f"chunk {name} mended")

        return undo

    def _change_file(self, path: str, change: Callable[[bytes], bytes], what: str) -> Undo:
        site = self._site
        before = site.disk.content(path)
        after = change(before)
        site.disk.replace(path, after)
        site.trace.note("damage", f"{path} {what}")

        def undo() -> None:
            if site.disk.exists(path):
                site.disk.replace(path, before + site.disk.content(path)[len(after) :])
                site.trace.note("damage", f"{path} mended")

        return undo


def flipped(data: bytes, bit: int) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(changed)
