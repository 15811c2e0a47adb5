"""What goes into the store: the input, cut into one share per segment and into events.

Owns: reading the input, ``Share``, and the sizes that follow from the input's size. Does not own: any store.
The parent and its children make the same shares from the same input; ``digest_of`` tells whether they did.
"""

from __future__ import annotations

import hashlib
import io
import sysconfig
from array import array
from itertools import accumulate
from pathlib import Path

import attrs

import tierlog
from tierlog.actors.config import WriterConfig
from tierlog.actors.config_units import GiB, KiB, MiB

EVENT_BYTES_MAX = MiB
"""A longer line is several events."""
LOG_BYTES = 32 * KiB
"""Of each segment, what is appended after the flush; a twentieth of it if that is less."""


class QuickstartError(Exception):
    """Something that was promised does not hold, or the run cannot be made. The message says what and where."""


@attrs.frozen
class Share:
    """What one segment shall hold."""

    name: str
    data: bytes
    ends: array[int]
    """Where each event ends."""
    flushed_events: int
    """The events that are appended before the flush; at least one comes after."""

    def bytes_of(self, events: int) -> int:
        """The size of the first ``events`` events."""
        return self.ends[events - 1] if events else 0

    @property
    def flushed_bytes(self) -> int:
        return self.bytes_of(self.flushed_events)

    def batch(self, first: int, end: int, bytes_max: int) -> list[bytes]:
        """Events from number ``first`` on, below ``end``: at least one, and no more than ``bytes_max`` bytes if they are several."""
        events: list[bytes] = []
        begin = at = self.bytes_of(first)
        for number in range(first, end):
            stop = self.ends[number]
            if events and stop - begin > bytes_max:
                break
            events.append(self.data[at:stop])
            at = stop

        return events


def read_input(source: Path | None, limit: int) -> bytes:
    """The first ``limit`` bytes of a file, of all files below a folder, or of the standard library's source files."""
    parts: list[bytes] = []
    left = limit
    for path in _files(source):
        try:
            with path.open("rb") as stream:
                parts.append(stream.read(left))
        except OSError as error:
            raise QuickstartError(f"cannot read the input {path}: {error.strerror}") from error
        left -= len(parts[-1])
        if not left:
            break

    return b"".join(parts)


def _files(source: Path | None) -> list[Path]:
    if source is None:
        root = Path(sysconfig.get_path("stdlib"))
        return sorted(path for path in root.rglob("*.py") if path.is_file() and "site-packages" not in path.parts)

    return sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]


def split_input(data: bytes, segments: int) -> list[Share]:
    """The input in order, one share of about equal size for each segment, cut between lines."""
    shares, begin = [], 0
    for index in range(segments):
        line = data.find(b"\n", max(begin, len(data) * (index + 1) // segments - 1))
        stop = len(data) if line < 0 or index == segments - 1 else line + 1
        shares.append(_share(f"quickstart/part-{index + 1}", data[begin:stop]))
        begin = stop

    return shares


def _share(name: str, data: bytes) -> Share:
    ends = _event_ends(data)
    if len(ends) < 2:
        raise QuickstartError("the input has too few lines for that many segments: give more input, or fewer --segments")

    in_log = min(len(data) // 20, LOG_BYTES)
    flushed = len(ends) - 1
    while flushed > 1 and len(data) - ends[flushed - 1] < in_log:
        flushed -= 1

    return Share(name, data, ends, flushed)


def _event_ends(data: bytes) -> array[int]:
    lengths: list[int] = []
    for line in io.BytesIO(data):
        whole, rest = divmod(len(line), EVENT_BYTES_MAX)
        lengths += [EVENT_BYTES_MAX] * whole + [rest] * (rest > 0)

    return array("Q", accumulate(lengths))


def digest_of(shares: list[Share]) -> str:
    """A SHA-256 of what all segments shall hold."""
    digest = hashlib.sha256()
    for share in shares:
        digest.update(share.data)

    return digest.hexdigest()


def store_config(shares: list[Share], *, flush_by_size: bool = False) -> tierlog.StoreConfig:
    """Chunks so small that every segment gets several, whatever the input's size. Flushes come by size or only when asked for."""
    share = max(len(share.data) for share in shares)
    flush_bytes = min(max(share // 8, KiB), 4 * MiB) if flush_by_size else GiB
    writer = WriterConfig(flush_bytes=flush_bytes, rolling_size=min(max(share // 4, 64 * KiB), 128 * MiB), flush_age=86_400.0)
    return tierlog.StoreConfig(writer=writer)


def batch_bytes(shares: list[Share]) -> int:
    """So small beside the input that the few batches which are under way are far from all of it."""
    return min(sum(len(share.data) for share in shares) // 400, 256 * KiB)
