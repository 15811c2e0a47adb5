"""Drives programs that only read, over files in memory."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tierlog.journal.log.local_scan import FrameRun, Scan, Window, scan
from tierlog.storage_backends.base.files import (
    Close,
    FileHandle,
    FindData,
    Lock,
    Open,
    Program,
    Read,
    Size,
    T,
)


@attrs.frozen
class MemoryHandle(FileHandle):
    _path: str

    @property
    def path(self) -> str:
        return self._path


def run_on(contents: Mapping[str, bytes], program: Program[T]) -> T:
    """Drive a program that only reads, over files that are given as a dict."""
    answer: object = None
    while True:
        try:
            call = program.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        match call:
            case Open(path):
                answer = MemoryHandle(path)
            case Read(handle, offset, size):
                answer = contents[handle.path][offset : offset + size]
            case Size(handle):
                answer = len(contents[handle.path])
            case FindData(handle, offset):
                content = contents[handle.path]
                answer = len(content) - len(content[offset:].lstrip(b"\0"))
            case Lock():
                answer = True
            case Close():
                answer = None
            case _:
                raise AssertionError(f"{call} does more than read")


def scan_bytes(data: bytes, run: FrameRun) -> Scan:
    """The scan of a whole file that holds ``data``."""
    return run_on({"x.wal": data}, scan(Window(MemoryHandle("x.wal"), len(data)), run, len(data)))
