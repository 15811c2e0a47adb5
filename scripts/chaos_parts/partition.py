"""Broken networks: a proxy between clients, hosts and supervisor. `scripts/chaos_partition.py` is its
command.

Owns: where the proxies stand. Clients know the supervisor and the hosts by addresses of 127.0.0.2, where the
proxies listen; the real ones listen at the same ports of 127.0.0.1. The control socket is renamed as soon as
the supervisor listens on it, and a proxy takes its place.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from chaos_parts.campaign import Run
from chaos_parts.options import Options
from chaos_parts.program import free_port, run_script, settings
from chaos_parts.proxy import Link, Trouble, free_ports
from chaos_parts.service import PATIENCE, ChaosError, OwnService

_REAL, _SHOWN = "127.0.0.1", "127.0.0.2"
_PORTS_FROM = 20_000
_LOOK = 0.002


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
    async def between(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for link in (self.supervisor_link, *self.host_links):
                await stack.enter_async_context(link)
            self.start()
            path = await self._listening_control()
            real = path.with_name("real")
            path.rename(real)
            stack.callback(real.unlink, missing_ok=True)
            self.control_link = await stack.enter_async_context(Link("control", str(path), str(real)))
            yield

    async def _listening_control(self) -> Path:
        """The control socket, once the supervisor listens on it: the first host takes far longer to find
        it."""
        with anyio.move_on_after(PATIENCE):
            while True:
                for path in self.runtime.glob("tierlog-*/*"):
                    if _listens(path):
                        return path
                await anyio.sleep(_LOOK)
        raise ChaosError(f"no supervisor within {PATIENCE:g} s: see {self.log}")


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
        """Trouble on some links for a while; when it is over every container must ack again."""
        service = run.service
        assert isinstance(service, ProxiedService)
        await service.settled()
        await anyio.sleep(run.random.uniform(0, 0.3))
        try:
            what = self._spoil(run, service)
            run.did(what)
            await anyio.sleep(run.random.choice((0.1, 0.5, 1.0, 2.0)) * run.random.uniform(0.5, 1.5))
        finally:
            for link in service.links:
                link.heal()
        await run.acks_again(
            range(service.containers),
            time.monotonic(),
            f"healed ({what.partition(' ')[0]}), until the first ack",
        )

    def _spoil(self, run: Run, service: ProxiedService) -> str:
        random = run.random
        links = random.choice(
            ([service.supervisor_link], [random.choice(service.host_links)], service.host_links, None)
        )
        if links is None:
            return self._spoil_control(run, service)

        kind = random.choice(("cut", "silent", "slow", "thin", "doubled", "broken"))
        for link in links:
            if kind in ("doubled", "broken"):
                link.set(
                    Trouble(cut=True)
                )  # So that there are new connections to be doubled, or that broke but once.
            link.set(self._troubles(random.uniform(0.005, 0.2))[kind])
        whose = (
            "the supervisor's link"
            if links == [service.supervisor_link]
            else "a host's link"
            if len(links) == 1
            else "all hosts' links"
        )
        return f"{kind} {whose}"

    def _troubles(self, delay: float) -> dict[str, Trouble]:
        return {
            "cut": Trouble(cut=True),
            "silent": Trouble(silent=True),
            "slow": Trouble(delay=delay),
            "thin": Trouble(rate=20_000),
            "doubled": Trouble(duplicate=True),
            "broken": Trouble(),
        }

    def _spoil_control(self, run: Run, service: ProxiedService) -> str:
        """Between a host, or all of them, and the supervisor. Clients see all of them."""
        assert service.control_link is not None
        kind = run.random.choice(("cut", "silent", "slow"))
        trouble = self._troubles(run.random.uniform(0.005, 0.2))[kind]
        if run.random.random() < 0.6:
            service.control_link.spoil_one(trouble, run.random)
            return f"{kind} control of a host"
        service.control_link.set(trouble)
        return f"{kind} control of all hosts"


def main(text: str, arguments: Sequence[str]) -> int:
    return run_script(
        "partition", text, arguments, Partition(), rounds=20, plain=False, make_service=ProxiedService
    )
