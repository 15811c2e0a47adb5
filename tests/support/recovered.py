"""Recovery of a container's state from a log in memory, and logs written by hand."""

from __future__ import annotations

import attrs

from support.container_parts import Parts
from tierlog.actors.container.recovery import Recovery, RecoveryReport
from tierlog.journal.group_payload import PayloadBuilder
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.operations.operation import Operation


@attrs.frozen
class Recovered:
    parts: Parts
    report: RecoveryReport


async def recover(service: MemoryLogService) -> Recovered:
    """What a new owner of the log makes of it."""
    log = service.log("c")
    opened = await log.open()
    parts = Parts()
    parts.state.epoch = opened.epoch
    recovery = Recovery(log, opened, parts.state, parts.publisher, parts.cache)
    report = await recovery.run()
    return Recovered(parts, report)


@attrs.define
class Script:
    """A log written group by group."""

    service: MemoryLogService = attrs.field(factory=MemoryLogService)
    sequence: int = 0
    groups: list[tuple[list[bytes], int, int]] = attrs.field(factory=list)

    def group(
        self, *ops: Operation, tag: int = 0, truncate_before: int = 0, first: int | None = None
    ) -> None:
        """``first``: the sequence of the first operation, if it is to be a wrong one."""
        payload = PayloadBuilder(self.sequence + 1 if first is None else first)
        for op in ops:
            payload.add(op)
        self.sequence += len(ops)
        self.raw(b"".join(payload.parts), tag=tag, truncate_before=truncate_before)

    def raw(self, payload: bytes, *, tag: int = 0, truncate_before: int = 0) -> None:
        self.groups.append(([payload], tag, truncate_before))

    async def recover(self) -> Recovered:
        log = self.service.log("c")
        await log.open()
        for buffers, tag, truncate_before in self.groups:
            await log.append(buffers, tag=tag, truncate_before=truncate_before)
        await log.truncate()
        await log.close()
        return await recover(self.service)
