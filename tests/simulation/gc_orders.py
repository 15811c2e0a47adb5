"""An operator's orders to garbage collection, in seeds of their own, at random beside everything else: pause,
resume, retry, purge, sweep. Deletions fail for a while, so that there is something to retry and to purge.

Whatever was ordered, nothing is left over in the end. The last owner is asked once more, when nothing else is
wrong (rule G2): while it is paused it deletes nothing; what failed goes soon after a retry; and
what was purged is found by a sweep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random

import anyio.abc
import trio

from tierlog.actors.container.container import Container

from .clients import Client
from .faults import Fault, Kind, Target, Window
from .invariants import Broken
from .model_calls import Append, Truncate
from .plan import FaultKind, PlannedFault
from .process import Process
from .records import OWN_CHUNKS
from .run_state import Ending, RunState
from .storage_invariants import referenced_chunks

_SECONDS = 60.0
_FLUSHES = 30
_DELETES = ("delete", "delete_many")
_ALWAYS = Window(1e9, 1.0)

Order = Callable[[Container], Awaitable[object]]


async def _pause(container: Container) -> None:
    container.collector.pause()


async def _resume(container: Container) -> None:
    container.collector.resume()


async def _retry(container: Container) -> int:
    return container.collector.retry_failed()


async def _purge(container: Container) -> int:
    return container.collector.purge_failed()


async def _sweep(container: Container) -> None:
    """As ``tierlog gc sweep --confirm``: count what nothing refers to, then confirm."""
    await container.count_garbage()
    await container.confirm()


_ORDERS: Mapping[str, Order] = {
    "pause": _pause,
    "resume": _resume,
    "retry": _retry,
    "purge": _purge,
    "sweep": _sweep,
}


class GarbageOrders:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup) -> None:
        """``tasks`` holds the processes."""
        self._run = run
        self._tasks = tasks
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {FaultKind.GC_ORDER: self._begin}

    def _begin(self, fault: PlannedFault) -> None:
        process, random = self._run.current, Random(f"fault {fault.chance}")
        if process is None or process.frozen:
            return

        if random.random() < 0.4:
            kind, share = random.choice((Kind.BEFORE, Kind.BEFORE, Kind.AFTER)), random.choice((0.5, 1.0))
            window = Window(fault.seconds, share)
            verbs = _DELETES if kind is Kind.BEFORE else ("delete",)
            self._run.site.faults.add(Fault(Target.CHUNKS, kind, window, verbs, start=OWN_CHUNKS))
        name = random.choice([*_ORDERS])
        index = random.randrange(self._run.plan.site.containers)
        self._tasks.start_soon(self._run.site.or_all_end, partial(self._order, process, name, index))

    async def _order(self, process: Process, name: str, index: int) -> Ending:
        order = _ORDERS[name]
        outcome = await self._run.attempt(
            process, f"gc {name} {index}", lambda store: store.on_container(index, order), seconds=_SECONDS
        )
        return outcome.ending

    async def check(self, process: Process, flush: Callable[[int], Awaitable[None]]) -> None:
        """At the end, when nothing is wrong any more and nothing is left over: what is garbage now goes
        before a round of retries would be due."""
        plan, random = self._run.plan, Random(f"last gc orders {self._run.plan.seed}")
        if all(fault.kind is not FaultKind.GC_ORDER for fault in plan.beside):
            return

        visitor = Client(plan.clients, (), self._run)
        names = [name for family in plan.families for name in family]
        for name in names:
            await visitor.visit(process, Append(name, (b"<garbage>" * 40,)))
        await flush(1)
        means, ends = random.choice((("pause", ("resume",)), ("", ("retry",)), ("", ("purge", "sweep"))))
        await self._order_all(process, *filter(None, (means,)))
        if not means:
            self._run.site.faults.add(Fault(Target.CHUNKS, Kind.BEFORE, _ALWAYS, _DELETES, start=OWN_CHUNKS))
        await trio.sleep(1.0)  # a batch under way goes on
        before = self._own_chunks()
        for name in names:
            info = await self._run.attempt(
                process,
                f"looks at {name}",
                lambda store, name=name: store.segment_info(name),  # type: ignore[misc]
                seconds=_SECONDS,
            )
            if info.ending is Ending.ANSWERED:
                await visitor.visit(process, Truncate(name, info.value.length))
        await flush(_FLUSHES)  # deletions that fail count as a storage that does not answer (rule A16)
        delay = max(1.0, plan.site.limits.collect_after)
        await trio.sleep(6 * delay + 5.0)
        if gone := before - self._own_chunks():
            raise Broken(f"it does not hold that what is paused, or fails, stays\n{means}: {sorted(gone)}")
        has_garbage = bool(self._own_chunks() - referenced_chunks(process.containers()))
        has_failed = any(container.collector.failed_tasks(1) for container in process.containers())
        if has_garbage and not means and not has_failed:
            raise Broken("it does not hold that deletions that fail are listed")
        self._run.site.faults.clear()
        await self._order_all(process, *ends)
        self._run.counts[f"garbage before gc {ends[0]}"] += has_garbage

    async def _order_all(self, process: Process, *names: str) -> None:
        for name in names:
            for index in range(self._run.plan.site.containers):
                if await self._order(process, name, index) is not Ending.ANSWERED:
                    raise Broken(f"it does not hold that orders are answered\ngc {name} {index}")

    def _own_chunks(self) -> set[str]:
        return {name for name in self._run.site.chunk_names() if name.startswith(OWN_CHUNKS)}
