"""Network faults: a proxy between clients, hosts and supervisor. `scripts/chaos_partition.py` is the command.

Clients know the supervisor and the hosts by addresses of 127.0.0.2, where the proxies listen; the processes
listen on the same ports of 127.0.0.1. The control socket is renamed as soon as the supervisor listens on it,
and a proxy takes its place."""

from __future__ import annotations

import socket
import time
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
            folder / "data",
            folder,
            hosts=options.hosts,
            containers=options.containers,
            config=config,
            port=first,
        )
        self.data_url = f"http://{_SHOWN}:{first}"
        self.supervisor_link = Link("supervisor", (_SHOWN, first), (_REAL, first))
        self.host_links = [
            Link(f"host-{n}", (_SHOWN, first + 1 + n), (_REAL, first + 1 + n)) for n in range(options.hosts)
        ]
        self.control_link: Link | None = None

    @property
    def links(self) -> list[Link]:
        control = [] if self.control_link is None else [self.control_link]
        return [self.supervisor_link, *self.host_links, *control]

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for link in (self.supervisor_link, *self.host_links):
                await stack.enter_async_context(link)
            self.start()
            path = await self._control_socket()
            real = path.with_name("real")
            path.rename(real)
            stack.callback(real.unlink, missing_ok=True)
            self.control_link = await stack.enter_async_context(Link("control", str(path), str(real)))
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


class Partition:
    @asynccontextmanager
    async def prepared(self, run: Run) -> AsyncIterator[None]:
        yield

    async def round(self, run: Run) -> None:
        """A fault on some links for a while. When it ends every container must ack again."""
        service = run.service
        assert isinstance(service, ProxiedService)
        await service.settled()
        await anyio.sleep(run.random.uniform(0, 0.3))
        try:
            fault = self._inject(run, service)
            run.begin_fault(fault)
            await anyio.sleep(run.random.choice((0.1, 0.5, 1.0, 2.0)) * run.random.uniform(0.5, 1.5))
        finally:
            for link in service.links:
                link.heal()
        await run.acks_again(
            range(service.containers),
            time.monotonic(),
            f"healed ({fault.partition(' ')[0]}), until the first ack",
        )

    def _inject(self, run: Run, service: ProxiedService) -> str:
        random = run.random
        links = random.choice(
            ([service.supervisor_link], [random.choice(service.host_links)], service.host_links, None)
        )
        if links is None:
            return self._inject_control(run, service)

        kind = random.choice(("cut", "silent", "slow", "thin", "doubled", "broken"))
        for link in links:
            if kind in ("doubled", "broken"):
                # Both are about new connections.
                link.set(LinkFault(cut=True))
            link.set(self._faults(random.uniform(0.005, 0.2))[kind])
        whose = (
            "the supervisor's link"
            if links == [service.supervisor_link]
            else "a host's link"
            if len(links) == 1
            else "all hosts' links"
        )
        return f"{kind} {whose}"

    @staticmethod
    def _faults(delay: float) -> dict[str, LinkFault]:
        return {
            "cut": LinkFault(cut=True),
            "silent": LinkFault(silent=True),
            "slow": LinkFault(delay=delay),
            "thin": LinkFault(rate=20_000),
            "doubled": LinkFault(duplicate=True),
            "broken": LinkFault(),
        }

    def _inject_control(self, run: Run, service: ProxiedService) -> str:
        """Between the supervisor and one host, or all; clients reach all of them."""
        assert service.control_link is not None
        kind = run.random.choice(("cut", "silent", "slow"))
        fault = self._faults(run.random.uniform(0.005, 0.2))[kind]
        if run.random.random() < 0.6:
            service.control_link.set_one(fault, run.random)
            return f"{kind} control of a host"
        service.control_link.set(fault)
        return f"{kind} control of all hosts"


def main(text: str, arguments: Sequence[str]) -> int:
    return run_script(
        "partition", text, arguments, Partition(), rounds=20, plain=False, make_service=ProxiedService
    )
