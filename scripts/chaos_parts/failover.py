"""Kills a running service with SIGKILL, again and again, and proves that nothing acked is lost.

It starts `tierlog serve` on a temporary folder (or attaches to yours with --url) and writers that record
every ack. In each round it kills a host, all hosts, the supervisor, or supervisor and host together, and
waits until every container acks again. At the end every segment is read back: each acked event must be there
exactly once and in the order of its writer, nothing may be torn, and an event with an unknown outcome may be
there once. No process, descriptor or socket may be left.

  scripts/chaos_failover.py --rounds 5
  scripts/chaos_failover.py --rounds 100 --tail 10000 --goals     # p99 of the first ack within 1 s
  scripts/chaos_failover.py --url http://127.0.0.1:8470           # attached: only hosts are killed

Times are from SIGKILL until the answer to an event that was sent after it, including detection, opening and
replay.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

import anyio

from chaos_parts.campaign import Run
from chaos_parts.command_line import run_script
from chaos_parts.service import Victim

GOAL = 1.0


async def kill(run: Run) -> None:
    await run.service.settled()
    hosts = await run.service.hosts()
    # Kills must not stay in step with checkpoints, flushes and heartbeats.
    await anyio.sleep(run.random.uniform(0, 0.3))
    chance = run.random.random()
    if chance < 0.7 or not run.service.is_ours:
        figure = "SIGKILL of a host until the first ack of the new owner"
        goal: float | None = GOAL
        if len(hosts) == 1:
            # Nobody can take over: this is the time that a process takes to start.
            figure, goal = "the only host killed, until the first ack", None
        await _kill_hosts(run, [run.random.choice(hosts)], "SIGKILL of a host", figure, goal)
    elif chance < 0.8:
        await _kill_hosts(run, hosts, "SIGKILL of all hosts", "all hosts killed, until the first ack")
    elif chance < 0.9:
        await _kill_supervisor(run)
    else:
        await _kill_both(run, run.random.choice(hosts))


async def _kill_hosts(
    run: Run, victims: Sequence[Victim], fault: str, figure: str, goal: float | None = None
) -> None:
    run.begin_fault(fault)
    since = time.monotonic()
    for victim in victims:
        run.service.send_signal(victim, signal.SIGKILL)
    containers = [index for victim in victims for index in victim.containers]
    await run.acks_again(figure, goal, since=since, containers=containers)


async def _kill_supervisor(run: Run) -> None:
    """No container moves and no writer waits: the hosts go on without it."""
    run.begin_fault("SIGKILL of the supervisor")
    run.service.send_signal(await run.service.supervisor(), signal.SIGKILL)
    await run.acks_again("supervisor killed, until the next ack")
    await anyio.sleep(run.random.uniform(0, 0.5))
    await run.service.restart_supervisor()


async def _kill_both(run: Run, victim: Victim) -> None:
    run.begin_fault("SIGKILL of supervisor and host")
    since = time.monotonic()
    run.service.send_signal(await run.service.supervisor(), signal.SIGKILL)
    run.service.send_signal(victim, signal.SIGKILL)
    await anyio.sleep(run.random.uniform(0, 0.5))
    await run.service.restart_supervisor()
    figure = "supervisor and host killed, until the first ack"
    await run.acks_again(figure, since=since, containers=victim.containers)


def main(arguments: Sequence[str]) -> int:
    return run_script("failover", __doc__, arguments, kill, attach=True)
