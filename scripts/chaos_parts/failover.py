"""Kills: hosts, the supervisor, both, with SIGKILL. `scripts/chaos_failover.py` is the command."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from chaos_parts.campaign import Run
from chaos_parts.command_line import run_script
from chaos_parts.service import Victim

GOAL = 1.0


class Failover:
    @asynccontextmanager
    async def prepared(self, run: Run) -> AsyncIterator[None]:
        yield

    async def round(self, run: Run) -> None:
        await run.service.settled()
        hosts = await run.service.hosts()
        # Kills must not stay in step with checkpoints, flushes and heartbeats.
        await anyio.sleep(run.random.uniform(0, 0.3))
        chance = run.random.random()
        if chance < 0.7 or not run.service.is_ours:
            victim = run.random.choice(hosts)
            if len(hosts) == 1:
                # Nobody can take over: this is the time that a process takes to start.
                await self._kill_hosts(
                    run, [victim], "SIGKILL of a host", "the only host killed, until the first ack"
                )
            else:
                figure = "SIGKILL of a host until the first ack of the new owner"
                await self._kill_hosts(run, [victim], "SIGKILL of a host", figure, GOAL)
        elif chance < 0.8:
            await self._kill_hosts(
                run, hosts, "SIGKILL of all hosts", "all hosts killed, until the first ack"
            )
        elif chance < 0.9:
            await self._kill_supervisor(run)
        else:
            await self._kill_both(run, run.random.choice(hosts))

    async def _kill_hosts(
        self, run: Run, victims: Sequence[Victim], fault: str, figure: str, goal: float | None = None
    ) -> None:
        run.begin_fault(fault)
        since = time.monotonic()
        for victim in victims:
            run.service.send_signal(victim, signal.SIGKILL)
        containers = [index for victim in victims for index in victim.containers]
        await run.acks_again(containers, since, figure, goal)

    async def _kill_supervisor(self, run: Run) -> None:
        """No container moves and no writer waits: the hosts go on without it."""
        run.begin_fault("SIGKILL of the supervisor")
        run.service.send_signal(await run.service.supervisor(), signal.SIGKILL)
        since = time.monotonic()
        await run.acks_again(range(run.service.containers), since, "supervisor killed, until the next ack")
        await anyio.sleep(run.random.uniform(0, 0.5))
        await run.service.restart_supervisor()

    async def _kill_both(self, run: Run, victim: Victim) -> None:
        run.begin_fault("SIGKILL of supervisor and host")
        since = time.monotonic()
        run.service.send_signal(await run.service.supervisor(), signal.SIGKILL)
        run.service.send_signal(victim, signal.SIGKILL)
        await anyio.sleep(run.random.uniform(0, 0.5))
        await run.service.restart_supervisor()
        await run.acks_again(victim.containers, since, "supervisor and host killed, until the first ack")


def main(text: str, arguments: Sequence[str]) -> int:
    return run_script("failover", text, arguments, Failover(), rounds=20, attach=True)
