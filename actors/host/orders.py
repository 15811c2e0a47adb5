"""The supervisor's orders: opens and closes containers, and reports the results and what ends by itself.

Orders about one container are executed one after the other, those about different ones at the same time. An
order to open what is already served, and not fenced, is answered with its present epoch. An answer goes only
to the supervisor whose order it was, for the next one counts its orders anew. A container fenced by a later
owner is closed and reported as soon as it is seen (rule V3): where the log's hint is never old, at the latest
after a second. A log in a bucket is asked after a pause of this process, in which others may have acted, and
before what is served here is reported or opened again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import attrs

from ...storage_backends.base.errors import StoreMismatch, TierlogError
from ..container.local_container import LocalContainer
from ..kernel.exits import ActorExit, ExitKind, first_leaf
from ..store.runtime import ContainerRuntime
from ..supervisor.control.messages import Close, Closed, Drain, Ended, Failed, Fenced, Open, Opened, Report
from ..telemetry.logging import get_logger

_log = get_logger("host")


class Orders:
    def __init__(
        self,
        runtime: ContainerRuntime,
        *,
        report: Callable[[Report], None],
        drain: Callable[[str], None],
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        """``drain(reason)`` begins the end of the process."""
        self._runtime = runtime
        self._report = report
        self._drain = drain
        self._tasks = tasks
        self._locks: defaultdict[int, anyio.Lock] = defaultdict(anyio.Lock)
        self._waiting: defaultdict[int, deque[Open | Close]] = defaultdict(deque)
        self._epochs: dict[int, int] = {}
        """The last known epoch of what was opened."""
        self._term = 0
        self._is_confirming = False
        self.is_unconfirmed = False
        """Whether ``find_fenced`` was cancelled, and none has ended since."""

    def obey(self, order: Open | Close | Drain) -> None:
        """Begin to execute an order; its answer is reported later."""
        _log.info(
            "order_received",
            kind=type(order).__name__.lower(),
            container=getattr(order, "index", None),
            term=order.term,
        )
        self._term = order.term
        match order:
            case Open() | Close():
                waiting = self._waiting[order.index]
                waiting.append(order)
                # Orders about one container are executed in turn: to close waits until the opening has ended.
                if len(waiting) == 1:
                    self._tasks.start_soon(self._work, waiting)
            case Drain():
                self._drain("the supervisor's order")

    def check_fenced(self) -> None:
        """Close the containers that were fenced since the last call."""
        for index in list(self._epochs):
            container = self._runtime.container(index)
            if container.active is not None and isinstance(container, LocalContainer):
                if container.active.is_fenced:
                    self._tasks.start_soon(self._close_fenced, index, container)
                else:
                    self._epochs[index] = container.active.state.epoch

    async def find_fenced(self) -> None:
        """``check_fenced``, for what others had done when this was called (rule W12)."""
        self.is_unconfirmed = True
        async with anyio.create_task_group() as tasks:
            for index in list(self._epochs):
                active = self._runtime.container(index).active
                if active is not None:
                    tasks.start_soon(active.find_fenced)
        self.is_unconfirmed = False
        self.check_fenced()

    def confirm(self) -> None:
        """Begin ``find_fenced``, unless one is under way."""
        if not self._is_confirming:
            self._is_confirming = True
            self._tasks.start_soon(self._confirm)

    async def _confirm(self) -> None:
        try:
            await self.find_fenced()
        finally:
            self._is_confirming = False

    async def close_all(self) -> None:
        """Close what is served here, and what was ordered to be opened by now."""
        _log.warning("containers_closed", reason="there is no supervisor", containers=sorted(self._epochs))
        async with anyio.create_task_group() as tasks:
            for index in {*self._epochs, *(index for index, waiting in self._waiting.items() if waiting)}:
                tasks.start_soon(self._close_alone, index)

    async def _close_alone(self, index: int) -> None:
        while True:
            async with self._locks[index]:
                await self._forget(index)
            if not self._waiting[index]:
                return
            # The task of the next order has not begun, and takes the lock first.
            await anyio.lowlevel.checkpoint()

    def ownerships(self) -> AbstractSet[tuple[int, int]]:
        """(index, epoch) of what was opened, and has not ended as far as is known."""
        return self._epochs.items()

    def statistics(self) -> dict[str, Any]:
        """For the heartbeats: the facts that the supervisor shows of each container, the health of long-term
        storage, and the requests to a bucket."""
        opened = [self._runtime.container(index) for index in sorted(self._epochs)]
        requests = self._runtime.requests
        return {
            "containers": {
                str(container.index): _facts(container)
                for container in opened
                if isinstance(container, LocalContainer)
            },
            "storage": self._runtime.storage_health.document(),
            **({} if requests is None else {"requests": attrs.asdict(requests)}),
        }

    # --- inside ----------------------------------------------------------------------------------

    async def _work(self, waiting: deque[Open | Close]) -> None:
        """Execute the orders about one container in sequence."""
        while waiting:
            order = waiting[0]
            async with self._locks[order.index]:
                await (self._open(order) if isinstance(order, Open) else self._close(order))
            # Only now: ``obey`` starts another task when it finds the queue empty.
            waiting.popleft()

    async def _open(self, order: Open) -> None:
        index = order.index
        container = self._runtime.container(index)
        # V3: it was fenced, which nothing has noticed yet. The order begins another ownership.
        if container.active is not None and await container.active.find_fenced():
            await self._runtime.close(index)
        if not self._runtime.serves(index):
            # Whoever watches the one before reports nothing once another is in its place.
            self._epochs.pop(index, None)
            container = self._runtime.begin(index)
        assert isinstance(container, LocalContainer)
        try:
            await container.wait_started()
        except TierlogError as error:
            # Its exit shows whether the fault is permanent; the error that was raised may be a symptom.
            ended = await container.wait_ended()
            await self._forget(index)
            self._answer(order, Failed(index, order.request, _kind(ended), str(error)))
            return

        assert container.active is not None
        if index not in self._epochs:
            self._tasks.start_soon(self._watch, index, container)
        self._epochs[index] = epoch = container.active.state.epoch
        self._answer(order, Opened(index, order.request, epoch))

    async def _close(self, order: Close) -> None:
        await self._forget(order.index)
        self._answer(order, Closed(order.index))

    async def _close_fenced(self, index: int, container: LocalContainer) -> None:
        async with self._locks[index]:
            # Under the lock: an order may have closed or replaced it while this waited.
            if self._runtime.container(index) is not container or container.is_closing:
                return

            epoch = self._epochs.get(index, 0)
            await self._forget(index)
            self._report(Fenced(index, epoch, "another owner opened it"))

    async def _watch(self, index: int, container: LocalContainer) -> None:
        """Report the end of a container that was not ordered."""
        ended = await container.wait_ended()
        if container.is_closing:
            return

        async with self._locks[index]:
            # As above.
            if self._runtime.container(index) is not container:
                return

            epoch = self._epochs.get(index, 0)
            await self._forget(index)
        if ended.kind is ExitKind.FENCED:
            self._report(Fenced(index, epoch, _reason(ended)))
        else:
            self._report(Ended(index, _kind(ended), _reason(ended)))

    async def _forget(self, index: int) -> None:
        """Serve the container no longer, whatever state it is in."""
        await self._runtime.close(index)
        self._runtime.forget(index)
        self._epochs.pop(index, None)

    def _answer(self, order: Open | Close, report: Report) -> None:
        _log.info(
            "order_answered",
            kind=type(report).__name__.lower(),
            container=order.index,
            epoch=getattr(report, "epoch", None),
        )
        if order.term == self._term:
            self._report(report)
        elif isinstance(report, Opened):
            # V2: no answer to the later supervisor, whose requests have other numbers. The hello did not name
            # it, and it fenced the owner that the supervisor may know.
            self._report(attrs.evolve(report, request=0))


def _kind(ended: ActorExit) -> str:
    return "mismatch" if isinstance(first_leaf(ended.error), StoreMismatch) else ended.kind.value


def _reason(ended: ActorExit) -> str:
    leaf = first_leaf(ended.error)
    return ": ".join(part for part in (ended.detail, str(leaf or "")) if part) or ended.kind.value


def _facts(opened: LocalContainer) -> dict[str, Any]:
    if opened.active is None:
        return {"log": {"state": opened.statistics().state, "cause": "the container is opened again"}}

    statistics = opened.active.statistics()
    outage = opened.active.log.outage()
    return {
        **({"log": {"state": "unreachable", "cause": outage}} if outage else {}),
        "epoch": statistics.epoch,
        "wal_bytes": statistics.log.retained_bytes,
        "unflushed_bytes": statistics.cache.unflushed_bytes,
        "segments": statistics.segments,
        "unconfirmed": statistics.collector.unconfirmed,
    }
