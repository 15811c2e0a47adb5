"""The supervisor in one-port mode: requests for a container are passed on to its host (rule H22)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import tierlog
from support.fake_hosts import FakeHostsSupervisor
from support.http_server import ServedStore, service, until
from support.patience import scaled
from tierlog.actors.gateway.server.app import context_of
from tierlog.actors.gateway.server.context import ServerContext
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.gateway.wire.batch import BATCH_TYPE, encode_batch
from tierlog.actors.gateway.wire.bodies import ContainerMap
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.supervisor.admin import AdminContext, make_admin_app

pytestmark = pytest.mark.anyio
NAMES = ["a", "b", "c/d"]


@asynccontextmanager
async def one_port(
    tmp_path: Path, *, containers: int = 3
) -> AsyncIterator[tuple[ServedStore, ServerContext, httpx.AsyncClient]]:
    """A host, and the supervisor before it."""
    async with service(tmp_path, containers=containers) as host:
        supervisor = FakeHostsSupervisor(containers, 2, url=f"http://127.0.0.1:{host.port}")
        app = make_admin_app(supervisor, {}, system_world(), forwards=True)
        async with (
            serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as server,
            httpx.AsyncClient(base_url=server.url, timeout=scaled(10), verify=False) as http,
        ):
            yield host, context_of(app), http


async def test_h22_a_client_that_reaches_only_the_supervisor_does_everything(tmp_path: Path) -> None:
    async with one_port(tmp_path) as (host, _, http):
        async with tierlog.connect(str(http.base_url)) as client:
            for name in NAMES:
                await client.create_segment(name)
            outcomes = await client.append_each([tierlog.BatchItem(name, b"xy") for name in NAMES * 2])
            assert outcomes == [0, 0, 0, 2, 2, 2]
            assert await client.append("a", bytes(1 << 20)) == 4
            assert await client.read("a", 2, 4) == b"xy\0\0"
            assert await client.list_segments() == NAMES
            await client.seal_segment("b")
            assert [block async for block in client.tail("b")] == [b"xyxy"]
            await client.flush()
        assert host.gateway.metrics.operation("append").answers == {("POST", 200): 1}
        found = (await http.get("/v1/containers")).json()["containers"]
        assert {each["url"] for each in found} == {None}


async def test_no_map_is_made_for_each_append_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 65,536 they would stop the supervisor for seconds, in which it reads no heartbeat."""
    async with one_port(tmp_path) as (host, front, http):
        await host.store.create_segment("a")
        assert isinstance(front, AdminContext)
        maps: list[ContainerMap] = []
        whole = front.supervisor.map

        def counted() -> ContainerMap:
            maps.append(whole())
            return maps[-1]

        monkeypatch.setattr(front.supervisor, "map", counted)
        body = b"".join(encode_batch([tierlog.BatchItem("a", b"x")] * 100))
        answer = await http.post("/v1/batch", content=body, headers={"Content-Type": BATCH_TYPE})
        assert (answer.status_code, len(maps)) == (200, 1)


async def test_a_tail_at_the_supervisor_is_parked_and_ends_with_it(tmp_path: Path) -> None:
    async with one_port(tmp_path) as (host, front, http):
        await host.store.create_segment("a")
        async with http.stream("GET", "/v1/segments/a/tail?stream=true") as stream:
            await until(lambda: host.gateway.tails == front.tails == 1)
            front.drain()
            assert [piece async for piece in stream.aiter_raw()] == []
        await until(lambda: host.gateway.tails == 0)
