"""Requests that wait for cold segments: a later call about one of their segments must not be answered before
they were decided (rule C4).

Calls that overlap may take effect in any order as far as their callers can tell, so the checker does not see
which of them came first. What waits in a container when a call begins is ahead of it for certain.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tierlog.actors.container.parked import Parked, ParkedRequests
from tierlog.storage_backends.base.transactions import is_staged

from .invariants import Broken
from .model_calls import Append, Delete, Merge, Op, Seal, Truncate, UpdateAttributes
from .process import Process

_CHANGES = (Append, Delete, Merge, Seal, Truncate, UpdateAttributes)
"""An answer to one of these is a decision of the pipeline."""


@attrs.frozen
class Ahead:
    """What waited when a call began."""

    found: Sequence[tuple[ParkedRequests, Parked]]

    @staticmethod
    def of(op: Op, process: Process) -> Ahead:
        if not isinstance(op, _CHANGES):
            return Ahead(())

        names = set(op.names)
        queues = (container._components.pipeline._parked for container in process.containers())
        return Ahead(
            [(queue, parked) for queue in queues for parked in queue if not names.isdisjoint(parked.names)]
        )

    def check_decided(self, op: Op) -> None:
        """``op`` was answered."""
        for queue, parked in self.found:
            if parked in tuple(queue):
                raise Broken(f"{op} was answered, and {parked.request!r} waited before it and waits still")


def waits_with(process: Process) -> str:
    """A segment of bytes in memory that a request names which waits for another one; "" if there is none."""
    for container in process.containers():
        for parked in container._components.pipeline._parked:
            for name in parked.names:
                segment = container.state.segments.in_memory(name)
                if segment is None or segment.sealed or segment.is_table:
                    continue
                if not is_staged(name):
                    return name
    return ""
