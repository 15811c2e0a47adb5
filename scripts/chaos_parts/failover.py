"""Kills: hosts, the supervisor, both, with SIGKILL. `scripts/chaos_failover.py` is its command."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from chaos_parts.campaign import Run
from chaos_parts.program import run_script
from chaos_parts.service import Victim

GOAL = 1.0


class Failover:
    @asynccontextmanager
    async def prepared(self, run: Run) -> AsyncIterator[None]:
        yield

    async def round(self, run: Run) -> None:
        await run.service.settled()
        hosts = await run.service.hosts()
        # So that kills do not follow each other in the same step with checkpoints, flushes and heartbeats.
        await anyio.sleep(run.random.uniform(0, 0.3))
        chance = run.random.random()
        if chance < 0.7 or not run.service.is_ours:
            await self._kill_host(run, run.random.choice(hosts), alone=len(hosts) == 1)
        elif chance < 0.8:
            await self._kill_all_hosts(run, hosts)
        elif chance < 0.9:
            await self._kill_supervisor(run)
        else:
            await self._kill_both(run, run.random.choice(hosts))

    async def _kill_host(self, run: Run, victim: Victim, *, alone: bool) -> None:
        """The others take over; without others it is the time that a process takes to start."""
        run.did("SIGKILL of a host")
        since = time.monotonic()
        run.service.hit(victim, signal.SIGKILL)
        if alone:
            await run.acks_again(victim.containers, since, "the only host killed, until the first ack")
        else:
            await run.acks_again(
                victim.containers, since, "SIGKILL of a host until the first ack of the new owner", GOAL
            )

    async def _kill_all_hosts(self, run: Run, hosts: Sequence[Victim]) -> None:
        run.did("SIGKILL of all hosts")
        since = time.monotonic()
        for victim in hosts:
            run.service.hit(victim, signal.SIGKILL)
        await run.acks_again(
            [index for victim in hosts for index in victim.containers],
            since,
            "all hosts killed, until the first ack",
        )

    async def _kill_supervisor(self, run: Run) -> None:
        """Nothing is moved, nobody waits: the hosts go on without it."""
        run.did("SIGKILL of the supervisor")
        run.service.hit(await run.service.supervisor(), signal.SIGKILL)
        since = time.monotonic()
        await run.acks_again(range(run.service.containers), since, "supervisor killed, until the next ack")
        await anyio.sleep(run.random.uniform(0, 0.5))
        await run.service.restart_supervisor()

    async def _kill_both(self, run: Run, victim: Victim) -> None:
        run.did("SIGKILL of supervisor and host")
        since = time.monotonic()
        run.service.hit(await run.service.supervisor(), signal.SIGKILL)
        run.service.hit(victim, signal.SIGKILL)
        await anyio.sleep(run.random.uniform(0, 0.5))
        await run.service.restart_supervisor()
        await run.acks_again(victim.containers, since, "supervisor and host killed, until the first ack")


def main(text: str, arguments: Sequence[str]) -> int:
    return run_script("failover", text, arguments, Failover(), rounds=20, attach=True)
