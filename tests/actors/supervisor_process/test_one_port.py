"""A service in one-port mode behind a load balancer, and the loss of a host (rule H22)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

import tierlog
from support.live_service import SyncOwnService, name_in
from support.relay import Address, Relay

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc"),
    pytest.mark.extended,
    pytest.mark.anyio,
]
COUNT = 100


def hosts_of(service: SyncOwnService) -> list[Address]:
    """Those that serve now: a host that is started again has another port."""
    found = [urlsplit(host["url"]) for host in service.status()["hosts"] if host["url"]]
    return [(each.hostname or "", each.port or 0) for each in found]


@pytest.mark.parametrize("sessions", [True, False])
async def test_h22_writers_behind_one_port_survive_a_killed_host(folder: Path, sessions: bool) -> None:
    names = [name_in(index, 4) for index in range(4)]
    with (
        SyncOwnService(folder, "--forward", containers=4) as service,
        Relay(lambda: hosts_of(service)).running() as relay,
    ):
        service.settle()
        async with tierlog.connect(relay.url, deadline=120, sessions=sessions) as client:
            followed = bytearray()

            async def write(name: str) -> None:
                for number in range(COUNT):
                    await client.append(name, b"%04d" % number, writer_id="w", event_number=number)
                    if name == names[0] and number == COUNT // 2:
                        victim = service.assignments()[1][0]
                        os.kill(service.pids()[victim], signal.SIGKILL)

            async def follow() -> None:
                async for block in client.tail(names[1]):
                    followed.extend(block)

            for name in names:
                await client.create_segment(name)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                async with anyio.create_task_group() as writers:
                    for name in names:
                        writers.start_soon(write, name)
                await client.seal_segment(names[1])
            whole = b"".join(b"%04d" % number for number in range(COUNT))
            assert followed == whole
            for name in names:
                assert await client.read(name, 0, 4 * COUNT + 1) == whole
            assert await client.list_segments() == sorted(names)
        assert sessions or len(set(relay.used)) >= 2, "a session is one connection, to one host"
        service.settle()  # the killed host is back
        scrapes = [(await _get(f"http://{address}:{port}/metrics")) for address, port in hosts_of(service)]
        assert any("tierlog_http_forwarded_requests_total{" in scrape for scrape in scrapes)
        assert service.status()["failovers"] >= 1


async def _get(url: str) -> str:
    import httpx

    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        return (await http.get(url)).text
