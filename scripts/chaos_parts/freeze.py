"""Freezes hosts of a running service with SIGSTOP, lets others take over, resumes them as zombies, and
proves that every answer was true.

It starts `tierlog serve` on a temporary folder (or attaches to yours with --url) and writers that record
every ack. In each round a host is frozen: for a moment, for longer than the supervisor waits, or forever; or
the supervisor is frozen. Other writers send directly to the frozen host, so that it finds requests when it
wakes up, after another host has opened its containers. What it acks must be in what the new owner serves;
what it rejects must not. At the end every segment is checked as by scripts/chaos_failover.py.

  scripts/chaos_freeze.py --rounds 5
  scripts/chaos_freeze.py --rounds 100 --tail 10000 --goals       # p99 of the first ack within 1.5 s

Times are from SIGSTOP until the answer to an event that was sent after it, including detection.
"""

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
from chaos_parts.http_store import BYTES
from chaos_parts.ledger import Outcome, Record, Writer
from chaos_parts.service import Victim
from tierlog.actors.gateway.wire.paths import Verb, segment_path

GOAL = 1.5
_APPEND_TIMEOUT = 20.0
_ACKED, _REJECTED = "acked by zombies", "rejected by zombies"


async def freeze(run: Run) -> None:
    run.report.count(_ACKED, 0)
    run.report.count(_REJECTED, 0)
    status = await run.service.settled()
    urls = {host["id"]: host["url"] for host in status["hosts"]}
    hosts = await run.service.hosts()
    await anyio.sleep(run.random.uniform(0, 0.3))
    chance = run.random.random()
    if chance < 0.15:
        await _freeze_supervisor(run)
        return

    victim = run.random.choice(hosts)
    if chance < 0.35:
        await _freeze_briefly(run, victim)
    else:
        await _freeze_host(run, victim, urls[victim.name], wakes=chance < 0.9, alone=len(hosts) == 1)


@asynccontextmanager
async def _frozen(run: Run, victim: Victim) -> AsyncIterator[float]:
    """Frozen during the body; yields the time of SIGSTOP."""
    since = time.monotonic()
    run.service.send_signal(victim, signal.SIGSTOP)
    try:
        yield since
    finally:
        run.service.send_signal(victim, signal.SIGCONT)


async def _freeze_supervisor(run: Run) -> None:
    """Nothing happens: data does not pass through it, and its own delay is no host's silence."""
    run.begin_fault("SIGSTOP of the supervisor")
    async with _frozen(run, await run.service.supervisor()) as since:
        await run.acks_again("supervisor frozen, until the next ack", since=since)
        await anyio.sleep(run.random.uniform(0, 1.5))


async def _freeze_briefly(run: Run, victim: Victim) -> None:
    """Too short to be detected for certain; another host may still take over."""
    run.begin_fault("SIGSTOP for a moment")
    async with _frozen(run, victim) as since:
        await anyio.sleep(run.random.uniform(0.02, 0.3))
    figure = "frozen for a moment, until the first ack"
    await run.acks_again(figure, since=since, containers=victim.containers)


async def _freeze_host(run: Run, victim: Victim, url: str, *, wakes: bool, alone: bool) -> None:
    """Another host takes over. The frozen one wakes up as a zombie, with requests that wait for it; or the
    supervisor kills it."""
    run.begin_fault("SIGSTOP, then a zombie" if wakes else "SIGSTOP forever")
    figure = "SIGSTOP of a host until the first ack of the new owner"
    goal: float | None = GOAL
    if alone:
        figure, goal = "the only host frozen, until the first ack", None
    async with (
        httpx.AsyncClient(base_url=url, timeout=_APPEND_TIMEOUT, trust_env=False) as client,
        anyio.create_task_group() as tasks,
    ):
        appends = ZombieAppends(run, client, victim.containers)
        appends.send(tasks)
        async with _frozen(run, victim) as since:
            appends.send(tasks)
            await run.acks_again(figure, goal, since=since, containers=victim.containers)
            appends.send(tasks)
            if wakes:
                await anyio.sleep(run.random.choice((0.0, 0.05, 0.5, 2.0)))
            else:
                await run.service.wait_for(
                    lambda status: all(host["pid"] != victim.pid for host in status["hosts"]),
                    f"{victim.name} is replaced",
                )
        appends.send(tasks)


class ZombieAppends:
    """Appends sent directly to a host that is, or will be, frozen, whatever the current owner is.

    Sent before the freeze ends, they wait in the frozen process's buffers, and the host finds them when it
    wakes up, after another host has opened the container. An ack of one counts as any ack: the event must be
    in what the new owner serves."""

    def __init__(self, run: Run, client: httpx.AsyncClient, containers: Sequence[int]) -> None:
        self._run = run
        self._client = client
        writers = [
            Writer(f"z{run.report.rounds}.{index}", run.segments[index], index, numbered=False, ordered=False)
            for index in containers
        ]
        self._writers = {run.ledger.add_writer(writer): writer for writer in writers}
        self._next = 0

    def send(self, tasks: anyio.abc.TaskGroup) -> None:
        """Send one event for each of the containers, each on its own connection."""
        for index, writer in self._writers.items():
            tasks.start_soon(self._send, index, writer, self._next)
        self._next += 1

    async def _send(self, index: int, writer: Writer, number: int) -> None:
        path, data = segment_path(writer.segment, Verb.APPEND), event_bytes(writer.id, number)
        began, outcome = time.monotonic(), Outcome.UNKNOWN  # of a cancelled request too
        try:
            answer = await self._client.post(path, content=data, headers=BYTES)
            if answer.is_success:
                self._run.report.count(_ACKED)
                outcome = Outcome.ACKED
            elif answer.status_code not in (408, 500):
                self._run.report.count(_REJECTED)
                outcome = Outcome.REJECTED
        except (httpx.ConnectError, httpx.ConnectTimeout):
            outcome = Outcome.REJECTED
        except httpx.TransportError:
            outcome = Outcome.UNKNOWN
        finally:
            self._run.ledger.add([Record(outcome, index, number, 1, began, time.monotonic())])


def main(arguments: Sequence[str]) -> int:
    return run_script("freeze", __doc__, arguments, freeze, attach=True)
