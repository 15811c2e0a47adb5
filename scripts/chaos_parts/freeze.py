"""Freezes: SIGSTOP and SIGCONT, so that hosts come back as zombies. `scripts/chaos_freeze.py` is its
command."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from chaos_parts.campaign import Run
from chaos_parts.program import run_script
from chaos_parts.service import Victim
from chaos_parts.zombies import Zombies

GOAL = 1.5


class Freeze:
    def __init__(self) -> None:
        self._zombies: Zombies | None = None

    @asynccontextmanager
    async def prepared(self, run: Run) -> AsyncIterator[None]:
        self._zombies = Zombies(run.ledger, run.segments)
        try:
            yield
        finally:
            await self._zombies.aclose()
            run.verdict.counts |= {
                "acked by zombies": self._zombies.acked,
                "refused by zombies": self._zombies.refused,
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
        """Nothing happens: data does not pass through it, and its own lateness is no host's silence."""
        run.did("SIGSTOP of the supervisor")
        victim = await run.service.supervisor()
        since = time.monotonic()
        run.service.hit(victim, signal.SIGSTOP)
        try:
            await run.acks_again(
                range(run.service.containers), since, "supervisor frozen, until the next ack"
            )
            await anyio.sleep(run.random.uniform(0, 1.5))
        finally:
            run.service.hit(victim, signal.SIGCONT)

    async def _freeze_briefly(self, run: Run, victim: Victim) -> None:
        """So short that nobody need notice; whoever does may open elsewhere."""
        run.did("SIGSTOP for a moment")
        since = time.monotonic()
        run.service.hit(victim, signal.SIGSTOP)
        try:
            await anyio.sleep(run.random.uniform(0.02, 0.3))
        finally:
            run.service.hit(victim, signal.SIGCONT)
        await run.acks_again(victim.containers, since, "frozen for a moment, until the first ack")

    async def _freeze_host(self, run: Run, victim: Victim, url: str, *, wakes: bool, alone: bool) -> None:
        """Another host takes over. The frozen one wakes up as a zombie, with requests that wait for it; or it
        is killed."""
        assert self._zombies is not None
        run.did("SIGSTOP, then a zombie" if wakes else "SIGSTOP for ever")
        async with anyio.create_task_group() as tasks:
            self._zombies.prod(tasks, url, victim.containers)
            since = time.monotonic()
            run.service.hit(victim, signal.SIGSTOP)
            try:
                self._zombies.prod(tasks, url, victim.containers)
                await self._await_takeover(run, victim, since, alone=alone)
                self._zombies.prod(tasks, url, victim.containers)
                if wakes:
                    await anyio.sleep(run.random.choice((0.0, 0.05, 0.5, 2.0)))
                else:
                    await run.service.wait_for(
                        lambda status: _pid_of(status, victim.name) != victim.pid,
                        f"{victim.name} is replaced",
                    )
            finally:
                run.service.hit(victim, signal.SIGCONT)
            self._zombies.prod(tasks, url, victim.containers)

    async def _await_takeover(self, run: Run, victim: Victim, since: float, *, alone: bool) -> None:
        if alone:
            await run.acks_again(victim.containers, since, "the only host frozen, until the first ack")
        else:
            await run.acks_again(
                victim.containers, since, "SIGSTOP of a host until the first ack of the new owner", GOAL
            )


def _pid_of(status: dict[str, object], name: str) -> object:
    hosts = status["hosts"]
    assert isinstance(hosts, list)
    return next((host["pid"] for host in hosts if host["id"] == name), None)


def main(text: str, arguments: Sequence[str]) -> int:
    return run_script("freeze", text, arguments, Freeze(), rounds=20, attach=True)
