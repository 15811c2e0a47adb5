"""Data folders as tests look at them: from outside, byte by byte."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path


def fingerprint(folder: Path) -> dict[str, str]:
    """The checksum of every file below ``folder``, and every folder's name: equal before and after means
    untouched."""
    found = {}
    for path, _, files in os.walk(folder):
        found[os.path.relpath(path, folder)] = ""
        for name in files:
            file = Path(path) / name
            found[os.path.relpath(file, folder)] = hashlib.sha256(file.read_bytes()).hexdigest()

    return found


def newest_log_file(folder: Path, container: int = 0) -> Path:
    return max((folder / "wal" / f"{container:04d}").glob("*.wal"))


def chunk_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "lts" / "containers").rglob("*") if path.is_file())


def flip_bit(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path has 108 bytes at most
        finally:
            os.close(folder)
