"""One run of a chaos script: a service, writers, rounds of trouble, and the judgement.

Owns: the order of things, and what all scripts share: options, figures, the bar, the end after Ctrl-C. Does
not own: the trouble itself, which is each script's ``Nemesis``.

1. The service starts (or is found), the segments are made, what its processes have open is counted.
2. The writers start. In each round the nemesis makes trouble and ends it; every container must ack again
   within a limit.
3. The writers finish. The service settles, is counted again, and every segment is read back and judged.
4. The service stops. No process and no socket may be left; `tierlog doctor` judges the folder.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

import anyio
import anyio.abc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tierlog
from chaos_parts.checker import SegmentCheck
from chaos_parts.crew import Crew, segment_names
from chaos_parts.leaks import Usage, compare_usage, sockets_below, usage_of
from chaos_parts.ledger import Ledger, Told
from chaos_parts.options import Options
from chaos_parts.raw import RawStore
from chaos_parts.service import PATIENCE, ChaosError, OwnService, Service, processes_of
from chaos_parts.tail import Tails
from chaos_parts.takeovers import Takeovers, Window
from chaos_parts.verdict import Verdict
from tierlog.actors.kernel.exits import leaves

POOLED = 45.0
"""Seconds. A client keeps idle connections for 30 s, and looks at their age when it is used."""
RECOVERY_LIMIT = 20.0
"""Seconds after which a container that does not ack again counts as lost."""
TAKEOVER_GOAL = 0.3


class Run:
    """What a nemesis works with."""

    def __init__(
        self, options: Options, service: Service, verdict: Verdict, folder: Path, show: Console
    ) -> None:
        self.options = options
        self.service = service
        self.verdict = verdict
        self.folder = folder
        self.random = Random(f"chaos/{options.seed}")
        self.ledger = Ledger()
        self.segments: list[str] = []
        self.windows: list[Window] = []
        """When a container had to be taken over and nothing else was in the way: figures with a goal are of
        these times."""
        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
        )
        self.progress = Progress(*columns, console=show, disable=not show.is_terminal)
        self._bar = self.progress.add_task("", total=options.rounds)

    def did(self, action: str) -> None:
        self.verdict.did(action)
        self.progress.update(self._bar, description=action)

    def broken(self, what: str) -> None:
        self.verdict.violations.append(what)

    def advance(self) -> None:
        self.verdict.rounds += 1
        self.progress.advance(self._bar)

    async def acks_again(
        self, containers: Iterable[int], since: float, figure: str, goal: float | None = None
    ) -> None:
        """Wait until every one of the containers acked an event that was sent after ``since``, and note how
        long that took."""
        wait = await self.ledger.first_told(Told.ACKED, containers, since, RECOVERY_LIMIT)
        samples = self.verdict.sample(figure, goal)
        samples.values += wait.seconds.values()
        if goal is not None:
            self.windows.append((time.time() - (time.monotonic() - since), time.time()))
        for container in sorted(wait.missing):
            self.broken(
                f"round {self.verdict.rounds + 1}: container {container} acked nothing within "
                f"{RECOVERY_LIMIT:g} s ({figure})"
            )

    async def all_ack(self) -> None:
        """Every container acks something that is sent from now on."""
        wait = await self.ledger.first_told(
            Told.ACKED, range(self.service.containers), time.monotonic(), RECOVERY_LIMIT
        )
        if wait.missing:
            raise ChaosError(f"containers {sorted(wait.missing)} ack nothing, though there is no trouble")


class Nemesis(Protocol):
    """The trouble of one script."""

    def prepared(self, run: Run) -> AbstractAsyncContextManager[None]:
        """What lasts through all rounds; left after the last one."""

    async def round(self, run: Run) -> None:
        """Make trouble, end it, and note how long it took until every container acked again."""


async def campaign(run: Run, nemesis: Nemesis) -> None:
    """Everything. What is wrong is in the verdict; ``ChaosError`` if the run could not be made."""
    service = run.service
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.admin.aclose)
        if isinstance(service, OwnService):
            await stack.enter_async_context(service.running())
        await service.learn()
        run.segments = segment_names(f"chaos/{run.options.seed}-{time.time_ns():x}", service.containers)
        await _create(run)
        before = await _usages(run)
        await _write_through_rounds(run, nemesis)
        await service.settled()
        run.verdict.violations += await _grown(before, partial(_usages, run), PATIENCE / 3)
        await _judge(run)
    if isinstance(service, OwnService):
        judge_the_rest(run, service)


async def _create(run: Run) -> None:
    async with RawStore(run.service.data_url) as store:
        for segment in run.segments:
            await store.create_segment(segment)


async def _write_through_rounds(run: Run, nemesis: Nemesis) -> None:
    options, service = run.options, run.service
    crew = Crew(run.ledger, url=service.data_url, client=options.client, seed=options.seed, pace=options.pace)
    crew.plan(run.segments, options.writers, plain=options.plain)
    tails = Tails(service, run.ledger, run.segments)
    takeovers = Takeovers(service)
    try:
        async with crew.writing():
            await run.all_ack()
            before = await _crew_usages(crew)
            began, acked = time.monotonic(), run.ledger.acked
            async with nemesis.prepared(run):
                await _rounds(run, nemesis, tails)
            await run.all_ack()
            run.verdict.seconds, run.verdict.acked = time.monotonic() - began, run.ledger.acked - acked
            run.verdict.violations += await _grown(before, partial(_crew_usages, crew), POOLED)
    finally:
        await tails.aclose()
        run.verdict.violations += run.ledger.problems
    inside, outside = takeovers.seconds(run.windows)
    run.verdict.sample("takeover: order to open until opened", TAKEOVER_GOAL).values += inside
    run.verdict.sample("opened after other trouble").values += outside
    for name, number in takeovers.replayed().items():
        run.verdict.counts[name] = number


async def _rounds(run: Run, nemesis: Nemesis, tails: Tails) -> None:
    for _ in range(run.options.rounds):
        await tails.add(run.options.tail)
        await nemesis.round(run)
        run.advance()
        if run.verdict.violations or run.ledger.problems:
            return


# --- leaks --------------------------------------------------------------------------------------


async def _usages(run: Run) -> dict[str, Usage]:
    """What the service's processes have open."""
    victims = [
        (await run.service.supervisor(), "supervisor"),
        *((host, "host") for host in await run.service.hosts()),
    ]
    usages = {victim.name: usage_of(victim.pid, role) for victim, role in victims}
    return {name: usage for name, usage in usages.items() if usage is not None}


async def _crew_usages(crew: Crew) -> dict[str, Usage]:
    usages = {f"writer {number}": usage_of(pid, "writer") for number, pid in enumerate(crew.pids)}
    return {name: usage for name, usage in usages.items() if usage is not None}


async def _grown(
    before: dict[str, Usage], usages: Callable[[], Awaitable[dict[str, Usage]]], limit: float
) -> list[str]:
    """Connections that are being closed or wait in a pool need a moment: what has grown must shrink within
    ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while grown := compare_usage(before, await usages()):
        if time.monotonic() >= deadline:
            break
        await anyio.sleep(0.1)
    return grown


# --- judgement ----------------------------------------------------------------------------------


async def _judge(run: Run) -> None:
    """Read every segment back through the service."""
    async with RawStore(run.service.data_url) as store:
        for segment in run.segments:
            check = SegmentCheck(segment, run.ledger.lanes)
            async for block in store.read_blocks(segment):
                check.feed(block)
            run.verdict.violations += check.finish()
            run.verdict.events += check.events
            run.verdict.doubts += check.doubts
            run.verdict.bytes += check.bytes
    lanes = run.ledger.lanes
    run.verdict.counts |= {
        "calls sent again": sum(lane.retried for lane in lanes),
        "doubtful": sum(len(lane.doubtful) for lane in lanes),
        "refused": sum(len(lane.refused) for lane in lanes),
        "refused as full": sum(lane.full for lane in lanes),
    }


def judge_the_rest(run: Run, service: OwnService) -> None:
    """What a stopped service left."""
    left = processes_of(service.folder_path)
    if left:
        run.broken(f"processes {left} outlived their supervisor")
    for path in sockets_below(service.runtime):
        run.broken(f"the socket {path} was left")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tierlog.actors.cli", "doctor", "--data", str(service.folder_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        run.broken(f"tierlog doctor: {(done.stdout + done.stderr).strip()[-500:]}")


# --- the program --------------------------------------------------------------------------------


async def until_signalled(run: Run, work: Callable[[Run], Awaitable[None]]) -> int:
    """The work, which is a campaign or something like it, with an end that leaves nothing after Ctrl-C;
    returns the exit status."""
    status = 0

    async def watch(scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        nonlocal status
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                status = 128 + number
                scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        await tasks.start(watch, tasks.cancel_scope)
        await _told(run, work)
        tasks.cancel_scope.cancel()
    return status


async def _told(run: Run, work: Callable[[Run], Awaitable[None]]) -> None:
    try:
        await work(run)
    except* (ChaosError, tierlog.TierlogError) as errors:
        run.verdict.violations += [str(error) for error in leaves(errors)]
