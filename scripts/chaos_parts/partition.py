"""Breaks the network of a service: between clients and hosts, clients and supervisor, hosts and supervisor.

It starts `tierlog serve` on a temporary folder, with a proxy in the middle of every connection, the control
socket's too, and writers that record every ack. In each round some connections are cut (reset), silent
(nothing passes, and no side notices), slow, thin, broken once, or doubled (what a client sends arrives at two
connections). When the fault ends every container must ack again. At the end every segment is checked
as by scripts/chaos_failover.py.

  scripts/chaos_partition.py --rounds 5
  scripts/chaos_partition.py --rounds 100 --hosts 3 --containers 8

It needs a machine where all of 127.0.0.0/8 is loopback, as on Linux: clients know the supervisor and
the hosts by addresses of 127.0.0.2, where the proxies listen.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from chaos_parts.campaign import Options, Run
from chaos_parts.command_line import run_script, settings
from chaos_parts.processes import PATIENCE, RunError, free_port
from chaos_parts.proxy import Link, LinkFault, free_ports
from chaos_parts.service import OwnService

_REAL, _SHOWN = "127.0.0.1", "127.0.0.2"
_PORTS_FROM = 20_000
_POLL = 0.002


class ProxiedService(OwnService):
    """A service whose every connection passes a proxy."""

    def __init__(self, options: Options, folder: Path) -> None:
        first = free_ports((_REAL, _SHOWN), options.hosts + 1, _PORTS_FROM + free_port() % 10_000)
        config = settings(options, f'host_port = {first + 1}\nadvertise = "{_SHOWN}"\n')
        super().__init__(
            folder, hosts=options.hosts, containers=options.containers, config=config, port=first
        )
        self.data_url = f"http://{_SHOWN}:{first}"
        self.supervisor_link, *self.host_links = self.links = [
            Link((_SHOWN, port), (_REAL, port)) for port in range(first, first + 1 + options.hosts)
        ]
        """All of them; the control socket's link comes last, once it is there."""

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for link in self.links:
                await stack.enter_async_context(link)
            self.start()
            # A proxy takes its place as soon as the supervisor listens on it.
            path = await self._control_socket()
            real = path.with_name("real")
            path.rename(real)
            stack.callback(real.unlink, missing_ok=True)
            self.links.append(await stack.enter_async_context(Link(str(path), str(real))))
            yield

    async def _control_socket(self) -> Path:
        """The control socket, once the supervisor listens on it; the first host connects much later."""
        with anyio.move_on_after(PATIENCE):
            while True:
                for path in self.runtime.glob("tierlog-*/*"):
                    if _listens(path):
                        return path
                await anyio.sleep(_POLL)
        raise RunError(f"no supervisor within {PATIENCE:g} s: see {self.log}")


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


async def part(run: Run) -> None:
    """A fault on some links for a while. When it ends every container must ack again."""
    service = run.service
    assert isinstance(service, ProxiedService)
    await service.settled()
    await anyio.sleep(run.random.uniform(0, 0.3))
    try:
        fault = _inject(run, service)
        run.begin_fault(fault)
        await anyio.sleep(run.random.choice((0.1, 0.5, 1.0, 2.0)) * run.random.uniform(0.5, 1.5))
    finally:
        for link in service.links:
            link.heal()
    await run.acks_again(f"healed ({fault.partition(' ')[0]}), until the first ack")


def _inject(run: Run, service: ProxiedService) -> str:
    random = run.random
    where = random.choice(("the supervisor's link", "a host's link", "all hosts' links", "control"))
    faults = {
        "cut": LinkFault(cut=True),
        "silent": LinkFault(silent=True),
        "slow": LinkFault(delay=random.uniform(0.005, 0.2)),
        "thin": LinkFault(rate=20_000),
        "doubled": LinkFault(duplicate=True),
        "broken": LinkFault(),
    }
    if where == "control":
        # Between the supervisor and one host, or all; clients reach all of them.
        kind, link = random.choice(("cut", "silent", "slow")), service.links[-1]
        if random.random() < 0.6:
            link.set_one(faults[kind], random)
            return f"{kind} control of a host"
        link.set(faults[kind])
        return f"{kind} control of all hosts"

    kind, links = random.choice(tuple(faults)), service.host_links
    if where == "the supervisor's link":
        links = [service.supervisor_link]
    elif where == "a host's link":
        links = [random.choice(links)]
    for link in links:
        if kind in ("doubled", "broken"):
            link.set(LinkFault(cut=True))  # both are about new connections
        link.set(faults[kind])
    return f"{kind} {where}"


def main(arguments: Sequence[str]) -> int:
    return run_script("partition", __doc__, arguments, part, plain=False, make_service=ProxiedService)
