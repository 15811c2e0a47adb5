"""The same workloads on every peer in turns: what ``scripts/bench --peers`` measures."""

from __future__ import annotations

import gc
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import attrs

from benchmarks.harness import BenchmarkError
from benchmarks.peers import applications, embedded, jetstream, kafka, redis_streams, service
from benchmarks.peers.contract import HISTORY, Kind, fill
from benchmarks.peers.workloads import ITEMS, Sizes, Workload
from tierlog.actors.kernel.exits import first_leaf

KINDS = (
    *embedded.KINDS,
    *service.KINDS,
    *kafka.KINDS,
    *jetstream.KINDS,
    *redis_streams.KINDS,
    *applications.KINDS,
)
_SECONDS_MAX = 300
"""For one measurement: a peer that stands still ends its row and not the run."""

Measure = Callable[[], Awaitable[float]]


@attrs.frozen
class Plan:
    kinds: Sequence[Kind]
    workloads: Sequence[Workload]
    sizes: Sizes
    rounds: int
    warms_up: bool
    """Whether there is one more round at first, which is not counted."""
    progress: Callable[[str, str], None]
    """Is called with what is done, and how far it is."""
    unavailable: Mapping[str, str]
    """What is missing to run a kind here, by its name."""


@attrs.define
class Figures:
    """By workload and kind."""

    found: dict[tuple[str, str], list[float]] = attrs.field(factory=dict)
    """The figures of the rounds."""
    missing: dict[tuple[str, str], str] = attrs.field(factory=dict)
    """Why there are none."""
    failed: set[str] = attrs.field(factory=set)
    """Kinds of which something was to be measured, and was not."""

    def takes_part(self, kind: Kind, workload: Workload) -> bool:
        return workload.is_for(kind) and (workload.name, kind.name) not in self.missing

    def give_up(self, kind: Kind, workload: Workload, reason: str) -> None:
        """Unless there is a reason already."""
        if self.takes_part(kind, workload):
            self.found.pop((workload.name, kind.name), None)
            self.missing[workload.name, kind.name] = reason
            self.failed.add(kind.name)


async def run(plan: Plan, folder: Path) -> Figures:
    """Kinds that cannot run here, or fail, have a reason in place of figures; the others run."""
    figures = Figures()
    for kind in plan.kinds:
        for workload in plan.workloads:
            if not workload.is_for(kind):
                continue
            if workload.name in kind.leaves_out:
                figures.missing[workload.name, kind.name] = kind.leaves_out[workload.name]
            elif reason := plan.unavailable.get(kind.name) or workload.missing():
                figures.give_up(kind, workload, f"not available: {reason}")
    for workload in plan.workloads:
        if workload.way == "restarts":
            await _measure_restarts(plan, workload, folder, figures)
    for way in ("client", "spark"):
        workloads = [workload for workload in plan.workloads if workload.way == way]
        if workloads:
            await _measure_together(plan, workloads, folder, figures)
    return figures


async def _measure_together(
    plan: Plan, workloads: Sequence[Workload], folder: Path, figures: Figures
) -> None:
    """All peers run at the same time, and one has work."""
    async with AsyncExitStack() as stack:
        peers = dict[str, Any]()
        for kind in plan.kinds:
            wanted = [workload for workload in workloads if figures.takes_part(kind, workload)]
            if not wanted:
                continue
            plan.progress("starting", kind.title)
            try:
                peers[kind.name] = await _opened(stack, kind, wanted, folder, plan.sizes)
            except Exception as error:  # noqa: BLE001 it is reported, and the others run
                _give_up(figures, kind, wanted, error)

        for workload in workloads:
            assert workload.measure is not None
            measures: dict[str, Measure] = {
                name: lambda peer=peer, measure=workload.measure: measure(peer, plan.sizes)  # type: ignore[misc]
                for name, peer in peers.items()
            }
            await _in_turns(plan, workload, measures, figures)
        plan.progress("stopping", "")


async def _opened(
    stack: AsyncExitStack, kind: Kind, workloads: Sequence[Workload], folder: Path, sizes: Sizes
) -> Any:
    own = _own(folder, kind, workloads[0].way)
    if workloads[0].way == "spark":
        assert kind.spark is not None
        return await stack.enter_async_context(kind.spark(own))

    assert kind.open is not None
    peer = await stack.enter_async_context(kind.open(own))
    if any(workload.name == "history" for workload in workloads):
        await fill(peer, HISTORY, sizes.history, ITEMS)
        await peer.settle()
    return peer


async def _measure_restarts(plan: Plan, workload: Workload, folder: Path, figures: Figures) -> None:
    """One peer at a time runs."""
    async with AsyncExitStack() as stack:
        measures: dict[str, Measure] = {}
        for kind in plan.kinds:
            if not figures.takes_part(kind, workload):
                continue
            assert kind.restarts is not None
            plan.progress(workload.name, f"loading {kind.title}")
            try:
                peer = await stack.enter_async_context(kind.restarts(_own(folder, kind, "restart")))
                await peer.load(plan.sizes.restart)
                measures[kind.name] = peer.first_ack
            except Exception as error:  # noqa: BLE001 it is reported, and the others run
                _give_up(figures, kind, [workload], error)

        await _in_turns(plan, workload, measures, figures)


async def _in_turns(plan: Plan, workload: Workload, measures: dict[str, Measure], figures: Figures) -> None:
    kinds = [kind for kind in plan.kinds if kind.name in measures and figures.takes_part(kind, workload)]
    for number in range(0 if plan.warms_up else 1, plan.rounds + 1):
        plan.progress(workload.name, f"round {number} of {plan.rounds}" if number else "warming up")
        for kind in kinds:
            if not figures.takes_part(kind, workload):  # It failed in an earlier round.
                continue
            gc.collect()
            try:
                with anyio.fail_after(_SECONDS_MAX):
                    figure = await measures[kind.name]()
            except Exception as error:  # noqa: BLE001 it is reported, and the others run
                _give_up(figures, kind, [workload], error)
                continue
            if number:
                figures.found.setdefault((workload.name, kind.name), []).append(figure)


def _own(folder: Path, kind: Kind, purpose: str) -> Path:
    own = folder / f"{kind.name}-{purpose}"
    own.mkdir()
    return own


def _give_up(figures: Figures, kind: Kind, workloads: Sequence[Workload], error: Exception) -> None:
    cause = first_leaf(error)
    what = str(cause) if isinstance(cause, BenchmarkError) else f"{type(cause).__name__}: {cause}"
    for workload in workloads:
        print(f"bench: {workload.name} failed with {kind.title}: {what}", file=sys.stderr)
        figures.give_up(kind, workload, f"failed: {what}")
