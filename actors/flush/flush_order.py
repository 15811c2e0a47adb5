"""The order of a flush cycle (PDP-40). Pure; tested exhaustively.

Owns: the bucket of each segment, the order inside a bucket, and the sources that a merge flushes first (rule
F3). Does not own: sizes, ages, I/O.

Buckets are barriers: user segments, then system segments, then storage metadata, then container metadata.
Inside a bucket a segment is flushed after every source that is merged into it; segments without such a
dependency are flushed concurrently. Inside a segment, truncation and seal are committed with the data (rule
F1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def close_over_merges(wanted: Iterable[int], sources: Mapping[int, Sequence[int]]) -> list[int]:
    """``wanted`` and everything merged into it, directly or not: sources before targets, each once.

    ``sources`` maps a segment to the segments merged into it. Merges cannot form a cycle, because a merged
    source has no name any more."""
    ordered: dict[int, None] = {}
    for root in wanted:
        stack = [(root, iter(sources.get(root, ())))]
        while stack:
            segment, left = stack[-1]
            following = next((s for s in left if s not in ordered), None)
            if following is not None:
                stack.append((following, iter(sources.get(following, ()))))
            else:
                ordered.setdefault(segment)
                stack.pop()

    return list(ordered)


def waves(ordered: Sequence[int], sources: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Group segments so that each wave depends on earlier waves only: a wave is flushed concurrently."""
    depth: dict[int, int] = {}
    result: list[list[int]] = []
    for segment in ordered:
        level = max((depth[s] + 1 for s in sources.get(segment, ()) if s in depth), default=0)
        depth[segment] = level
        if level == len(result):
            result.append([])
        result[level].append(segment)

    return result


def schedule(wanted: Mapping[int, str], sources: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """The waves of a whole cycle: ``wanted`` maps segments to names. Buckets never share a wave."""
    plan: list[list[int]] = []
    for bucket in Bucket:
        members = [segment for segment, name in wanted.items() if bucket_of(name) is bucket]
        plan.extend(waves(close_over_merges(members, sources), sources))

    return plan
