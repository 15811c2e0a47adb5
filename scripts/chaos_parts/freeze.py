"""Freezes: SIGSTOP and SIGCONT, so that hosts return as zombies. `scripts/chaos_freeze.py` is the command."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import httpx

from chaos_parts.campaign import Run
from chaos_parts.command_line import run_script
from chaos_parts.events import event_bytes
from chaos_parts.ledger import Lane, Ledger, Outcome, Record
from chaos_parts.service import Victim
from tierlog.actors.gateway.wire.paths import Verb, segment_path

GOAL = 1.5
_APPEND_TIMEOUT = 20.0


class ZombieAppends:
    """Appends sent directly to a host that is, or will be, frozen, whatever the current owner is.

    Sent before the freeze ends, they wait in the frozen process's buffers, and the host finds them when it
    wakes up, after another host has opened the container. An ack of one counts as any ack: the event must be
    in what the new owner serves."""

    def __init__(self, ledger: Ledger, segments: Sequence[str]) -> None:
        self._ledger = ledger
        self._lanes = [
            ledger.add_lane(Lane(f"z{index}", segment, index, identified=False, ordered=False))
            for index, segment in enumerate(segments)
        ]
        self._next = [0] * len(segments)
        self._client = httpx.AsyncClient(timeout=_APPEND_TIMEOUT, trust_env=False)
        self.acked = 0
        self.rejected = 0

    async def aclose(self) -> None:
        await self._client.aclose()

    def send(self, tasks: anyio.abc.TaskGroup, url: str, containers: Sequence[int]) -> None:
        """Send one event for each of the containers, each on its own connection."""
        for container in containers:
            number = self._next[container]
            self._next[container] += 1
            tasks.start_soon(self._send, url, self._lanes[container], number)

    async def _send(self, url: str, index: int, number: int) -> None:
        lane, began = self._ledger.lanes[index], time.monotonic()
        outcome = Outcome.UNKNOWN
        try:
            answer = await self._client.post(
                url + segment_path(lane.segment, Verb.APPEND),
                content=event_bytes(lane.writer, number),
                headers={"Content-Type": "application/octet-stream"},
            )
            if answer.is_success:
                self.acked += 1
                outcome = Outcome.ACKED
            elif answer.status_code not in (408, 500):
                self.rejected += 1
                outcome = Outcome.REJECTED
        except (httpx.ConnectError, httpx.ConnectTimeout):
            outcome = Outcome.REJECTED
        except httpx.TransportError:
            outcome = Outcome.UNKNOWN
        finally:
            # The outcome of a cancelled request is unknown too.
            self._ledger.add([Record(outcome, index, number, 1, began, time.monotonic())])


class Freeze:
    def __init__(self) -> None:
        self._zombies: ZombieAppends | None = None

    @asynccontextmanager
    async def prepared(self, run: Run) -> AsyncIterator[None]:
        self._zombies = ZombieAppends(run.ledger, run.segments)
        try:
            yield
        finally:
            await self._zombies.aclose()
            run.report.counts |= {
                "acked by zombies": self._zombies.acked,
                "rejected by zombies": self._zombies.rejected,
            }

    async def round(self, run: Run) -> None:
        status = await run.service.settled()
        urls = {host["id"]: host["url"] for host in status["hosts"]}
        hosts = await run.service.hosts()
        await anyio.sleep(run.random.uniform(0, 0.3))
        chance = run.random.random()
        if chance < 0.15:
            await self._freeze_supervisor(run)
            return

        victim = run.random.choice(hosts)
        if chance < 0.35:
            await self._freeze_briefly(run, victim)
        else:
            await self._freeze_host(run, victim, urls[victim.name], wakes=chance < 0.9, alone=len(hosts) == 1)

    async def _freeze_supervisor(self, run: Run) -> None:
        """Nothing happens: data does not pass through it, and its own delay is no host's silence."""
        run.begin_fault("SIGSTOP of the supervisor")
        victim = await run.service.supervisor()
        since = time.monotonic()
        run.service.send_signal(victim, signal.SIGSTOP)
        try:
            await run.acks_again(
                range(run.service.containers), since, "supervisor frozen, until the next ack"
            )
            await anyio.sleep(run.random.uniform(0, 1.5))
        finally:
            run.service.send_signal(victim, signal.SIGCONT)

    async def _freeze_briefly(self, run: Run, victim: Victim) -> None:
        """Too short to be detected for certain; another host may still take over."""
        run.begin_fault("SIGSTOP for a moment")
        since = time.monotonic()
        run.service.send_signal(victim, signal.SIGSTOP)
        try:
            await anyio.sleep(run.random.uniform(0.02, 0.3))
        finally:
            run.service.send_signal(victim, signal.SIGCONT)
        await run.acks_again(victim.containers, since, "frozen for a moment, until the first ack")

    async def _freeze_host(self, run: Run, victim: Victim, url: str, *, wakes: bool, alone: bool) -> None:
        """Another host takes over. The frozen one wakes up as a zombie, with requests that wait for it; or
        the supervisor kills it."""
        assert self._zombies is not None
        run.begin_fault("SIGSTOP, then a zombie" if wakes else "SIGSTOP for ever")
        figure = "SIGSTOP of a host until the first ack of the new owner"
        goal: float | None = GOAL
        if alone:
            figure, goal = "the only host frozen, until the first ack", None
        async with anyio.create_task_group() as tasks:
            self._zombies.send(tasks, url, victim.containers)
            since = time.monotonic()
            run.service.send_signal(victim, signal.SIGSTOP)
            try:
                self._zombies.send(tasks, url, victim.containers)
                await run.acks_again(victim.containers, since, figure, goal)
                self._zombies.send(tasks, url, victim.containers)
                if wakes:
                    await anyio.sleep(run.random.choice((0.0, 0.05, 0.5, 2.0)))
                else:
                    await run.service.wait_for(
                        lambda status: all(host["pid"] != victim.pid for host in status["hosts"]),
                        f"{victim.name} is replaced",
                    )
            finally:
                run.service.send_signal(victim, signal.SIGCONT)
            self._zombies.send(tasks, url, victim.containers)


def main(text: str, arguments: Sequence[str]) -> int:
    return run_script("freeze", text, arguments, Freeze(), rounds=20, attach=True)
