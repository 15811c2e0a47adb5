"""What goes into the service: the input, cut into pieces of whole lines, and the pieces into one share per
segment.

Owns: reading the input, ``Share``, ``Piece``, and the sizes that follow from the input's size. Does not own:
any service, nor Spark.

A piece is a range of one file. Writers get pieces and read the files themselves, wherever they run; a
checksum tells whether they read what was to be written. Each line, with its end, is an event, framed as in
``tierlog.spark_bridge.events``.
"""

from __future__ import annotations

import io
import sysconfig
import zlib
from collections.abc import Iterator
from enum import StrEnum
from itertools import accumulate, pairwise
from pathlib import Path

import attrs

from tierlog.actors.settings.units import KiB, MiB
from tierlog.spark_bridge import events

EVENT_BYTES_MAX = MiB
"""A longer line is several events."""
PIECE_BYTES_MAX = 256 * KiB
LOG_BYTES = 32 * KiB
"""Of each segment, what is appended after the flush; a twentieth of it if that is less."""
CACHE_BYTES = 4 * MiB
"""The service's cache for each container: a segment of the usual size does not fit, so that its older half is
read from chunks."""


class QuickstartError(Exception):
    """Something that was promised does not hold, or the run cannot be made. The message says what and
    where."""


class Part(StrEnum):
    """When a piece is written."""

    BULK = "bulk"
    """Before the flush: it is read from long-term storage."""
    REST = "rest"
    """After the flush: it stays in the log."""


@attrs.frozen
class Piece:
    """Whole lines of one file."""

    share: int
    index: int
    """Its place in the share."""
    path: str
    begin: int
    end: int
    crc: int
    first_event: int
    """The number of its first event in the segment."""
    part: Part = Part.BULK

    @property
    def size(self) -> int:
        return self.end - self.begin

    def load(self) -> list[bytes]:
        """Its events."""
        with open(self.path, "rb") as stream:
            stream.seek(self.begin)
            data = stream.read(self.size)
        if zlib.crc32(data) != self.crc:
            raise QuickstartError(f"{self.path} changed while it was being written: run again")

        return list(lines_of(data))


@attrs.frozen
class Share:
    """What one segment shall hold."""

    name: str
    data: bytes
    """The text of all pieces."""
    pieces: list[Piece]

    def pieces_of(self, part: Part) -> list[Piece]:
        return [piece for piece in self.pieces if piece.part is part]

    def size_of(self, part: Part) -> int:
        return sum(piece.size for piece in self.pieces_of(part))

    @property
    def count(self) -> int:
        """Of its events."""
        last = self.pieces[-1]
        return last.first_event + sum(1 for _ in lines_of(self.data[-last.size :]))

    def framed(self) -> bytes:
        """The segment's bytes."""
        begins = accumulate((piece.size for piece in self.pieces), initial=0)
        return b"".join(events.encode(lines_of(self.data[begin:end])) for begin, end in pairwise(begins))


def lines_of(data: bytes) -> Iterator[bytes]:
    """With their ends; a line that is too long for an event is several."""
    for line in io.BytesIO(data):
        for at in range(0, len(line), EVENT_BYTES_MAX):
            yield line[at : at + EVENT_BYTES_MAX]


# --- the input ----------------------------------------------------------------------------------


def read_input(source: Path | None, limit: int) -> list[tuple[Path, bytes]]:
    """The first ``limit`` bytes of a file, of all files below a folder, or of the standard library's source
    files."""
    found: list[tuple[Path, bytes]] = []
    left = limit
    for path in _files(source):
        try:
            with path.open("rb") as stream:
                data = stream.read(left)
        except OSError as error:
            raise QuickstartError(f"cannot read the input {path}: {error.strerror}") from error
        found.append((path, data))
        left -= len(data)
        if not left:
            break

    return found


def _files(source: Path | None) -> list[Path]:
    if source is None:
        root = Path(sysconfig.get_path("stdlib"))
        return sorted(
            path for path in root.rglob("*.py") if path.is_file() and "site-packages" not in path.parts
        )

    return sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]


# --- shares -------------------------------------------------------------------------------------


def split_input(files: list[tuple[Path, bytes]], segments: int) -> list[Share]:
    """The input in order, one share of about equal size for each segment."""
    total = sum(len(data) for _, data in files)
    size = max(1, min(total // (segments * 16), PIECE_BYTES_MAX))
    shares: list[list[tuple[Path, int, bytes]]] = [[] for _ in range(segments)]
    at = 0
    for path, data in files:
        for begin, lines in _cut(data, size):
            shares[at * segments // total].append((path, begin, lines))
            at += len(lines)
    if any(len(cuts) < 2 for cuts in shares):
        raise QuickstartError(
            "the input has too few lines for that many segments: give more input, or fewer --segments"
        )

    return [_share(number, cuts) for number, cuts in enumerate(shares)]


def _cut(data: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines, of about ``size`` bytes together, and where they begin."""
    begin = 0
    while begin < len(data):
        end = data.rfind(b"\n", begin, begin + size) + 1 or data.find(b"\n", begin + size) + 1 or len(data)
        yield begin, data[begin:end]
        begin = end


def _share(number: int, cuts: list[tuple[Path, int, bytes]]) -> Share:
    data = b"".join(lines for _, _, lines in cuts)
    last = len(cuts) - 1
    rest = len(cuts[last][2])
    while last > 1 and rest < min(len(data) // 20, LOG_BYTES):
        last -= 1
        rest += len(cuts[last][2])

    pieces: list[Piece] = []
    first = 0
    for index, (path, begin, lines) in enumerate(cuts):
        part = Part.BULK if index < last else Part.REST
        pieces.append(
            Piece(number, index, str(path), begin, begin + len(lines), zlib.crc32(lines), first, part)
        )
        first += sum(1 for _ in lines_of(lines))
    return Share(f"quickstart/part-{number + 1}", data, pieces)


def service_settings(shares: list[Share]) -> str:
    """Chunks so small that every segment gets several, whatever the input's size. Flushes come by size or
    when asked for, never by age."""
    share = max(len(share.data) for share in shares)
    return (
        f'append_bytes_max = "{CACHE_BYTES} B"\n\n'
        f'[cache]\nbytes = "{CACHE_BYTES} B"\n\n'
        f'[writer]\nflush_bytes = "{min(max(share // 8, KiB), MiB)} B"\n'
        f'rolling_size = "{min(max(share // 4, 64 * KiB), 128 * MiB)} B"\nflush_age = "24 h"\n'
    )
