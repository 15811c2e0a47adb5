"""The order of a flush cycle (PDP-40). Pure; tested exhaustively.

Owns: the bucket of each segment, the order inside a bucket, and that a source is flushed before what it is
merged into (rule F3). Does not own: sizes, ages, deadlines, I/O.

Buckets are barriers: user segments, then system segments, then storage metadata, then container metadata.
Inside a bucket a segment can be flushed as soon as its own sources are, whatever the others do (rule F7).
Inside a segment, truncation and seal are committed with the data (rule F1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import IntEnum


class Bucket(IntEnum):
    """The barriers of a cycle, in order."""

    USER = 1
    SYSTEM = 2
    STORAGE_METADATA = 3
    CONTAINER_METADATA = 4


SYSTEM_PREFIX = "_system/"
STORAGE_METADATA_PREFIX = "_system/containers/storage_metadata_"
CONTAINER_METADATA_PREFIX = "_system/containers/metadata_"


def bucket_of(name: str) -> Bucket:
    """The bucket of a segment, by its name."""
    if name.startswith(STORAGE_METADATA_PREFIX):
        return Bucket.STORAGE_METADATA

    if name.startswith(CONTAINER_METADATA_PREFIX):
        return Bucket.CONTAINER_METADATA

    return Bucket.SYSTEM if name.startswith(SYSTEM_PREFIX) else Bucket.USER


class FlushOrder:
    """What a cycle may flush next. Each segment is taken once and then ended once."""

    def __init__(self, names: Mapping[int, str], sources: Mapping[int, Sequence[int]]) -> None:
        """``names``: of all segments of the cycle. ``sources``: the segments merged into each, all of them in
        ``names``. Merges cannot form a circle, because a merged source has no name any more."""
        self._targets: dict[int, list[int]] = {}
        for target, merged in sources.items():
            for source in merged:
                self._targets.setdefault(source, []).append(target)
        self._missing = {segment: len(sources.get(segment, ())) for segment in names}
        self._bucket = _buckets(names, sources)
        self._open: dict[Bucket, dict[int, None]] = {bucket: {} for bucket in Bucket}
        """The segments of each bucket that have not ended."""
        self._ready: dict[Bucket, deque[int]] = {bucket: deque() for bucket in Bucket}
        for segment, bucket in self._bucket.items():
            self._open[bucket][segment] = None
            if not self._missing[segment]:
                self._ready[bucket].append(segment)

    @property
    def is_done(self) -> bool:
        return not any(self._open.values())

    def open(self) -> list[int]:
        """The segments that have not ended."""
        return [segment for members in self._open.values() for segment in members]

    def take(self) -> int | None:
        """A segment that can be flushed now; None if that needs others to end first, or none is left."""
        bucket = next((bucket for bucket in Bucket if self._open[bucket]), None)
        return None if bucket is None or not self._ready[bucket] else self._ready[bucket].popleft()

    def flushed(self, segment: int) -> None:
        del self._open[self._bucket[segment]][segment]
        for target in self._targets.get(segment, ()):
            self._missing[target] -= 1
            if not self._missing[target]:
                self._ready[self._bucket[target]].append(target)

    def give_up(self, segment: int) -> list[int]:
        """The segment is not flushed in this cycle, and neither is anything that it is merged into: returns
        those, which have ended too."""
        given_up: dict[int, None] = {}
        stack = [segment]
        while stack:
            # A target that was given up for another source never becomes ready: one source stays missing.
            for target in self._targets.get(stack.pop(), ()):
                if target not in given_up and self._missing[target] >= 0:
                    self._missing[target] = -1
                    given_up[target] = None
                    stack.append(target)
        for each in (segment, *given_up):
            del self._open[self._bucket[each]][each]
        return list(given_up)


def _buckets(names: Mapping[int, str], sources: Mapping[int, Sequence[int]]) -> dict[int, Bucket]:
    """The bucket of each segment: its own, or an earlier one that it is merged into."""
    bucket = {segment: bucket_of(name) for segment, name in names.items()}
    stack = [target for target in sources if target in bucket]
    while stack:
        target = stack.pop()
        for source in sources.get(target, ()):
            if bucket[source] > bucket[target]:
                bucket[source] = bucket[target]
                stack.append(source)

    return bucket
