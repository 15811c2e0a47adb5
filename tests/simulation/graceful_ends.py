"""Graceful ends, in some seeds: their processes have a budget for what they flush before they end, and many
deaths of the plan are such ends (rule F9).

What the report of an end does not list was flushed: the next owner finds no segment that long-term storage
lacks something of. What it lists is at least what the next owner finds. And where nothing goes wrong, the
next owner applies no operation of a client: a checkpoint has all of them."""

from __future__ import annotations

import attrs

from tierlog.actors.store.graceful_end import EndReport, LeftInLog

from .invariants import Broken
from .plan import FaultKind
from .process import Process
from .run_state import RunState

_BUDGET_FOR_ALL = 1.0
"""Seconds in which the flushes of an undisturbed end have always ended."""


@attrs.frozen
class _Ended:
    process: Process
    report: EndReport
    faults: int
    """How many calls had failed by then, and how often the disk was full."""


class GracefulEnds:
    def __init__(self, run: RunState) -> None:
        self._run = run
        self._last: _Ended | None = None

    def note(self, process: Process, *, is_undisturbed: bool = False) -> None:
        """``process`` was asked to end, and may have. ``is_undisturbed``: nothing is wrong any more, so it
        had time for everything, unless its budget is tiny."""
        self._last = None
        if self._run.site.processes[-1] is not process:
            return  # the next owner has what it flushes, and began before the end
        if not process.ended_cleanly or (report := process.store.end_report) is None:
            return

        self._last = _Ended(process, report, self._faults())
        self._run.counts["graceful ends"] += 1
        self._run.counts["containers left unflushed"] += len(report.left)
        self._run.trace.note(
            "nemesis", f"P{process.number} ended, left: {[*map(attrs.astuple, report.left)]}"
        )
        is_tiny = self._run.site.kind.limits.flush_budget < _BUDGET_FOR_ALL
        if is_undisturbed and report.left and not is_tiny:
            raise Broken(f"it does not hold that an end flushes everything\n{_text(report)}")

    def check(self, process: Process) -> None:
        """``process`` has just opened the store."""
        last, self._last = self._last, None
        if last is None or process.number != last.process.number + 1 or self._was_overtaken(last.process):
            return

        left = {each.container: each for each in last.report.left}
        for container in process.containers():
            said = left.get(container.index, LeftInLog(container.index, 0, 0, ""))
            recovery = container.statistics().recovery
            # What this owner did by itself since, such as the end of an expired transaction, is not meant.
            recovered_to = recovery.checkpoint_sequence + recovery.operations
            _, size = container.unflushed()
            segments = sum(1 for each in container.segments.dirty_segments() if each.touched <= recovered_to)
            if said.segments is None or said.bytes is None:
                continue  # it was not open: that is what the end says
            if segments > said.segments or size > said.bytes:
                raise Broken(
                    f"it does not hold that an end says what it leaves\nP{process.number} finds {segments} "
                    f"segments with {size} unflushed bytes in container {container.index}; "
                    f"P{last.process.number} said {_text(last.report)}"
                )
            known_to = recovery.checkpoint_sequence
            is_smooth = not last.faults and not self._faults() and container.index not in left
            if is_smooth and known_to < container.state.client_sequence <= recovered_to:
                raise Broken(
                    f"it does not hold that an end leaves nothing to do again\nP{process.number} found a "
                    f"checkpoint of container {container.index} up to {known_to}, and an operation "
                    f"{container.state.client_sequence} of a client"
                )

    def _was_overtaken(self, process: Process) -> bool:
        """Whether an earlier one, which stood still in its opening, has served since this one did."""
        begin = process.served_from
        assert begin is not None
        return any(
            each.served_from is not None and each.served_from >= begin
            for each in self._run.site.processes[: process.number - 1]
        )

    def _faults(self) -> int:
        return sum(self._run.site.faults.met.values()) + self._run.counts[FaultKind.DISK_FULL.value]


def _text(report: EndReport) -> str:
    return f"left {[*map(attrs.astuple, report.left)]} after {report.seconds:g} s"
