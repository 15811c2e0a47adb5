"""Bugs in flush cycles and in the memory that they free: bytes are given up before they are safe, or are
never moved.

Left out on purpose: waves without their order. A target that comes before its source finds no record and is
tried again at once.
"""

from __future__ import annotations

from .mutant import Mutant, mutant

_WRITER = "actors/flush/writer.py"
_FLUSHER = "actors/flush/segment_flusher.py"
_STATE = "actors/container/state.py"
_PUBLISH = "actors/container/publish.py"
_CACHE = "actors/read/tail_cache.py"

FLUSH: tuple[Mutant, ...] = (
    mutant(
        "flush-answered-by-the-running-cycle",
        "flush returns at the end of a cycle that began before the last acked append",
        "F5",
        _WRITER,
        "self._waiting.append((self._source.sequence, reply))",
        "self._waiting.append((self._cut, reply))",
    ),
    mutant(
        "failed-flush-is-reported-as-done",
        "flush returns although a segment could not be flushed",
        "F4",
        _WRITER,
        "        except TierlogError as error:\n            failed[plan.sid] = self.failing[plan.sid] = "
        "error",
        "        except TierlogError as error:\n            self.failing[plan.sid] = error",
    ),
    mutant(
        "merge-closure-not-flushed-together",
        "the sources of a merge are not flushed with their target, which can then never be flushed",
        "F3, hole 22",
        _WRITER,
        "stack.extend(source for source in sources if source is not None)",
        "stack.extend(source for source in sources if source is not None and source.needs_flush)",
    ),
    mutant(
        "merge-at-the-flushed-end-is-skipped",
        "a merge into a segment that is flushed exactly up to it is not spliced, and the segment is stuck",
        "F3",
        "actors/flush/aggregation.py",
        "if merge.offset < flushed:",
        "if merge.offset <= flushed:",
    ),
    mutant(
        "spliced-merge-is-still-pending",
        "a merge that is in long-term storage is still read from its source, which is gone",
        "F3",
        _STATE,
        "segment.merges[0].length <= segment.flushed:",
        "segment.merges[0].length < segment.flushed:",
    ),
    mutant(
        "seals-are-not-flushed",
        "long-term storage never hears that a segment was sealed, and no merge of it can be flushed",
        "F1",
        _FLUSHER,
        "        if plan.sealed:\n            await self._storage.seal(txn)\n",
        "",
    ),
    mutant(
        "truncations-are-not-flushed",
        "the chunks of what was truncated away are never freed",
        "F1",
        _FLUSHER,
        "        if plan.start_offset:\n            await self._storage.truncate(txn, plan.start_offset)\n",
        "",
    ),
    mutant(
        "delete-leaves-merged-sources",
        "deleting a segment leaves what was merged into it behind for ever",
        "F2",
        _STATE,
        "        for merge in segment.merges:\n            self._delete(DeleteSegment(merge.source))\n",
        "",
    ),
    mutant(
        "deleted-segment-keeps-its-chunks",
        "the record of a deleted segment is never removed, nor are its chunks",
        "F2",
        _FLUSHER,
        "        if await self._storage.exists(plan.sid):\n",
        "        if plan.length and plan.sealed and await self._storage.exists(plan.sid):\n",
    ),
    mutant(
        "internal-operations-count-as-caused",
        "what a flush cycle logs makes the next cycle due: an idle store never rests",
        "F5",
        _STATE,
        "        if kind in CAUSED:\n",
        "        if kind in CAUSED or kind is CommitMetadata:\n",
    ),
    mutant(
        "memory-given-up-before-the-flush",
        "bytes that are appended while a flush runs count as flushed with it, and memory gives up the only "
        "copy beside the log",
        "C1",
        _PUBLISH,
        "self._cache.mark_flushed(sid, segment.flushed)",
        "self._cache.mark_flushed(sid, segment.durable_length)",
    ),
    mutant(
        "half-flushed-block-is-evicted",
        "a block of memory whose first bytes are flushed is given up with the ones that are not",
        "C9",
        _CACHE,
        "start + len(block) > tail.flushed:",
        "start >= tail.flushed:",
    ),
    mutant(
        "view-of-a-block-that-grows",
        "a reader holds memory that the next append must enlarge, and the append fails",
        "C9",
        _CACHE,
        "elif index == len(tail.starts) - 1:",
        "elif index > len(tail.starts):",
    ),
    mutant(
        "mark-names-the-newest-group",
        "the log forgets the group of unflushed bytes, because only the newest group of a segment is "
        "remembered",
        "W5",
        _PUBLISH,
        "(max(end, marks[-1][0]), marks[-1][1])",
        "(max(end, marks[-1][0]), group)",
    ),
    mutant(
        "marks-dropped-at-any-flush",
        "after a flush of its first bytes the log forgets the groups of a segment's newer ones",
        "W5",
        _PUBLISH,
        "while marks and marks[0][0] <= segment.flushed:",
        "while marks and segment.flushed:",
    ),
)
