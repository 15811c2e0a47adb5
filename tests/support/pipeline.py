"""A pipeline on a log in memory whose appends a test can hold back or fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs

from support.container_parts import Parts
from support.table_rows import NO_RUNS
from tierlog.actors.container.cold_segments import ColdSegments
from tierlog.actors.container.loader import Loader
from tierlog.actors.container.parked import ParkedOptions, ParkedRequests
from tierlog.actors.container.pipeline import Pipeline, PipelineHooks, PipelineOptions
from tierlog.actors.container.requests import Request
from tierlog.actors.kernel.exits import first_leaf
from tierlog.actors.kernel.mailbox import Lane, Mailbox
from tierlog.actors.kernel.reply import Reply
from tierlog.actors.telemetry.tracing import SpanHook
from tierlog.journal.group_payload import decode_group
from tierlog.journal.log.memory import MemoryLog, MemoryLogService, _LogState
from tierlog.journal.operations.operation import Operation
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import ClosedError, TierlogError


class GatedLog(MemoryLog):
    """Appends wait for ``gate``; the next one raises ``error`` instead, if there is one."""

    def __init__(self, name: str, journal: _LogState) -> None:
        super().__init__(name, journal)
        self.gate = anyio.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.silence: TierlogError | None = None
        """What ``confirm_owner`` raises."""
        self.waiting = 0

    def hold(self) -> None:
        self.gate = anyio.Event()

    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if self.error is not None:
            raise self.error

        return await super().append(buffers, tag=tag, truncate_before=truncate_before)

    async def confirm_owner(self) -> None:
        if self.silence is not None:
            raise self.silence
        await super().confirm_owner()


@attrs.define
class PipelineWorld:
    options: PipelineOptions = PipelineOptions()
    parts: Parts = attrs.field(factory=Parts)
    service: MemoryLogService = attrs.field(factory=MemoryLogService)
    mailbox: Mailbox[Request] = attrs.field(factory=Mailbox)
    span: SpanHook | None = None
    published: int = 0
    """Calls of ``on_published``."""
    log: GatedLog = attrs.field(init=False)
    pipeline: Pipeline = attrs.field(init=False)
    error: BaseException | None = None
    """What ended the pipeline."""
    ended: anyio.Event = attrs.field(factory=anyio.Event)
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    """Around the pipeline."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PipelineWorld]:
        """With an open log and a pipeline that is closed at the end."""
        self.service.log("c")
        self.log = GatedLog("c", self.service._states["c"])
        opened = await self.log.open()
        self.parts.state.epoch = opened.epoch
        self.pipeline = Pipeline(
            self.parts.state,
            self.log,
            self.mailbox,
            self.parts.publisher,
            Loader(
                self.parts.state,
                self.log,
                ColdSegments(self.parts.state, NO_RUNS),
                ParkedRequests(ParkedOptions()),
            ),
            self.options,
            PipelineHooks(self._on_published, span=self.span),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            yield self
            self.close()
            self.log.gate.set()
            await self.ended.wait()

    async def _run(self) -> None:
        try:
            with self.scope:
                await self.pipeline.run()
        except Exception as error:  # noqa: BLE001 - tests examine every kind of error
            self.error = first_leaf(error)
        finally:
            self.ended.set()

    def _on_published(self) -> None:
        self.published += 1

    def close(self) -> None:
        """What a container's clean end does; requests that are still in the mailbox stay unanswered."""
        self.mailbox.close(ClosedError("closed"))

    def post(self, request: Request, size: int = 0, lane: Lane = Lane.NORMAL) -> Reply[Any]:
        """Into the mailbox, without waiting for the answer."""
        request.reply = Reply()
        assert self.mailbox.offer(request, size, lane)
        return request.reply

    async def ask(self, request: Request, size: int = 0) -> Any:
        return await self.post(request, size).wait()

    async def ask_internal(self, request: Request, size: int) -> Any:
        return await self.post(request, size, Lane.INTERNAL).wait()

    def groups(self) -> list[tuple[int, list[Operation]]]:
        """(first sequence, operations) of every durable group."""
        return [decode_group(memoryview(stored.payload)) for stored in self.service._states["c"].groups]
