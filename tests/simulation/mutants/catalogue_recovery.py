"""Bugs in checkpoints, truncation of the log and recovery: what was acked is there, and the next owner does
not see it.

Left out on purpose: a checkpoint that is taken before its own begin is applied. That operation changes
nothing.
"""

from __future__ import annotations

from .mutant import Edit, Mutant, mutant

_CHECKPOINTER = "actors/container/checkpoint.py"
_STATE = "actors/container/state.py"
_SEGMENTS = "actors/container/segments.py"
_RECOVERY = "actors/container/recovery.py"

_FOLLOWS_NOBODY = Edit("actors/container/local.py", "        container.follows = self._epochs\n", "")

RECOVERY: tuple[Mutant, ...] = (
    mutant(
        "log-truncated-before-the-checkpoint-is-durable",
        "the truncation address rides with a checkpoint's parts: a crash before its end leaves neither "
        "checkpoint nor log",
        "W5, hole 4",
        _CHECKPOINTER,
        "LogRequest(part)",
        "LogRequest(part, truncate_before=self._lowest_needed_group(self._log.next_group))",
    ),
    mutant(
        "log-truncated-one-group-too-far",
        "the oldest group that is still needed is dropped from the log",
        "W5",
        _CHECKPOINTER,
        "return min((begin_group, *(",
        "return 1 + min((begin_group, *(",
    ),
    mutant(
        "unflushed-bytes-do-not-hold-the-log",
        "a checkpoint truncates the log behind itself, though older groups hold bytes that are nowhere else",
        "W5",
        _CHECKPOINTER,
        "truncate_before = self._lowest_needed_group(begin_group)",
        "truncate_before = begin_group",
    ),
    mutant(
        "relogged-bytes-name-one-group-for-all",
        "after bytes were logged again, the log forgets the groups of the ones that came later",
        "F4",
        "actors/container/publish.py",
        "deque((*before, (end, group), *later))",
        "deque((*before, (end, group)))",
    ),
    mutant(
        "checkpoint-is-not-fixed-at-its-begin",
        "a checkpoint shows a segment as it is when it is encoded, so that recovery applies an operation "
        "twice",
        "C7, hole 29",
        _STATE,
        "        if self.snapshot is not None:\n            self.snapshot.before_change(segment)\n",
        "",
    ),
    mutant(
        "checkpoint-claims-one-operation-more",
        "a checkpoint says that it holds an operation which it does not hold, and recovery skips it",
        "C7",
        _STATE,
        "Snapshot(self.sequence, self.segments, ",
        "Snapshot(self.sequence + 1, self.segments, ",
    ),
    mutant(
        "checkpoint-forgets-evicted-segments",
        "segments that were idle at a checkpoint are gone after the next recovery",
        "C7",
        _STATE,
        "list(segments.evicted.values())",
        "[]",
    ),
    mutant(
        "writers-lost-at-checkpoint",
        "a writer that retries after a recovery is taken for a new one, and its event is there twice",
        "C3",
        _SEGMENTS,
        "                tuple(self.writers.items()),\n",
        "                (),\n",
    ),
    mutant(
        "expired-writers-lost-at-checkpoint",
        "a writer whose state was expired on purpose makes a silent fresh start",
        "C3",
        _SEGMENTS,
        "                tuple(self.expired),\n",
        "                (),\n",
    ),
    mutant(
        "attributes-lost-at-checkpoint",
        "attributes are gone after a recovery, and with them what they guarded",
        "C7",
        _SEGMENTS,
        "                tuple(self.attributes.items()),\n",
        "                (),\n",
    ),
    mutant(
        "start-offset-lost-in-recovery",
        "what was truncated away can be read again, or is missing, after a recovery",
        "C7",
        _SEGMENTS,
        "        segment.start_offset = image.start_offset\n",
        "",
    ),
    mutant(
        "seal-lost-in-recovery",
        "a sealed segment takes appends after a recovery",
        "C7",
        _SEGMENTS,
        "        segment.sealed = image.sealed\n",
        "",
    ),
    mutant(
        "pending-merges-lost-in-recovery",
        "bytes that were merged but not spliced yet are missing after a recovery",
        "hole 22",
        _SEGMENTS,
        "        segment.merges = list(image.merges)\n",
        "",
    ),
    mutant(
        "oldest-checkpoint-is-taken",
        "recovery starts from a checkpoint whose groups may be truncated already",
        "W5",
        _RECOVERY,
        "if group.tag == TAG_CHECKPOINT_END]\n",
        "if group.tag == TAG_CHECKPOINT_END][:1]\n",
    ),
    mutant(
        "bytes-before-the-checkpoint-not-restored",
        "unflushed bytes from before the checkpoint are missing after a recovery",
        "W5",
        _RECOVERY,
        "                    self._restore_data(number, ops)\n",
        "                    pass\n",
    ),
    mutant(
        "relogged-bytes-not-restored",
        "bytes that were logged again and are in no other group any more are missing after a recovery",
        "F4",
        _RECOVERY,
        "if type(op) is Append or type(op) is RelogData:",
        "if type(op) is Append:",
    ),
    Mutant(
        "fenced-owner-opens-again",
        "an owner that was fenced takes its container back: two processes throw each other out for ever",
        "hole 26",
        (
            Edit(
                "actors/kernel/lifecycle.py", "    ExitKind.FENCED: False,\n", "    ExitKind.FENCED: True,\n"
            ),
            _FOLLOWS_NOBODY,
        ),
    ),
    Mutant(
        "restart-opens-over-a-newer-owner",
        "an owner that failed and was succeeded meanwhile opens again after its pause and throws its "
        "successor out",
        "hole 26",
        (_FOLLOWS_NOBODY,),
    ),
)
