"""The order of a flush cycle (PDP-40). Pure; tested exhaustively.

Owns: the bucket of each segment, the order inside a bucket, and that a source is flushed before what it is
merged into (rule F3). Does not own: sizes, ages, deadlines, I/O.

Buckets are barriers: user segments, then system segments, then storage metadata, then container metadata.
Inside a bucket a segment can be flushed as soon as its own sources are, whatever the others do (rule F7).
Inside a segment, truncation and seal are committed with the data (rule F1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum

from ...storage_backends.base.sharded_dict import ShardedDict


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
    """What a cycle may flush next. First all segments are added, each after its sources were named; then each
    is taken once and ended once."""

    def __init__(self) -> None:
        self._targets: ShardedDict[int, list[int]] = ShardedDict()
        self._missing: dict[int, int] = {}
        """How many sources of a segment with sources have not ended."""
        self._bucket: ShardedDict[int, Bucket] = ShardedDict()
        """Of each segment that has not ended."""
        self._open = dict.fromkeys(Bucket, 0)
        """How many these are in each bucket."""
        self._ready: dict[Bucket, deque[int]] = {bucket: deque() for bucket in Bucket}

    def add_source(self, segment: int, source: int) -> None:
        """``source`` is merged into ``segment``. Both are added later, first ``segment``. So merges form no
        circle, and a source knows its targets."""
        targets = self._targets.get(source)
        if targets is None:
            self._targets[source] = [segment]
        else:
            targets.append(segment)
        self._missing[segment] = self._missing.get(segment, 0) + 1

    def add(self, segment: int, name: str) -> None:
        """Its bucket is the earliest of its own and those of its targets."""
        # A source must not wait behind the barrier that its target is in front of.
        bucket = min([bucket_of(name), *(self._bucket[target] for target in self._targets.get(segment, ()))])
        self._bucket[segment] = bucket
        self._open[bucket] += 1
        if segment not in self._missing:
            self._ready[bucket].append(segment)

    @property
    def is_done(self) -> bool:
        return not self._bucket

    def open(self) -> Iterator[int]:
        """The segments that have not ended."""
        return iter(self._bucket)

    def take(self) -> int | None:
        """A segment that can be flushed now; None if that needs others to end first, or none is left."""
        # A barrier: while a segment of this bucket is open, also one that is under way, no later bucket
        # begins.
        bucket = next((bucket for bucket in Bucket if self._open[bucket]), None)
        return None if bucket is None or not self._ready[bucket] else self._ready[bucket].popleft()

    def flushed(self, segment: int) -> None:
        self._end(segment)
        for target in self._targets.pop(segment, ()):
            if target not in self._bucket:
                continue  # given up for another source

            self._missing[target] -= 1
            if not self._missing[target]:
                self._ready[self._bucket[target]].append(target)

    def give_up(self, segment: int) -> list[int]:
        """The segment is not flushed in this cycle, and neither is anything that it is merged into: returns
        those, which have ended too."""
        given_up: dict[int, None] = {}
        stack = [segment]
        while stack:
            # A target without the splice of one source cannot have those behind it: its bytes are in offset
            # order (F3).
            for target in self._targets.get(stack.pop(), ()):
                if target in self._bucket and target not in given_up:
                    given_up[target] = None
                    stack.append(target)
        for each in (segment, *given_up):
            self._end(each)
        return list(given_up)

    def _end(self, segment: int) -> None:
        self._open[self._bucket.pop(segment)] -= 1
