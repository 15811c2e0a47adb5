"""One process's parts of one store: containers, the storage actor and the store that leads to them, started and stopped in order.

Owns: the wiring of hosts to a log and to chunk storage that it is given, and the start and stop order. Does not own: which log and which
chunk storage (``node.py`` for real ones, ``tierlog.testing.simulation`` for simulated ones), nor anything that the parts do.

Start: the storage actor, then every container, until each answers; if one never will, the start fails with its reason. Stop, also on
cancellation and Ctrl-C: refuse new calls, stop the containers (each finishes what it took in), stop the storage actor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs

from ..storage_backends.base.chunk_storage import ChunkStorage
from ..storage_backends.base.data_log import DurableDataLog
from ..storage_backends.base.world import World
from .container.claim import Identity
from .container.container import Container, ContainerOptions
from .container.host import ContainerHost
from .core.supervision import RestartPolicy
from .identity import StoreIdentity
from .storage.actor import StorageActor
from .storage.client import StorageClient
from .storage.options import StorageOptions
from .store import SegmentStore, SpanHook


@attrs.frozen
class ServingOptions:
    container: ContainerOptions
    storage: StorageOptions
    restart: RestartPolicy
    unavailable_wait: float
    """Seconds that a call waits for a container that is recovering."""
    append_bytes_max: int
    rolling_size: int
    """Bytes after which the chunks of a segment roll, unless its creation says otherwise."""


@asynccontextmanager
async def serve(
    identity: StoreIdentity,
    owner_id: str,
    *,
    chunks: ChunkStorage,
    make_log: Callable[[int], DurableDataLog],
    options: ServingOptions,
    world: World,
    span: SpanHook | None = None,
) -> AsyncIterator[SegmentStore]:
    """Serve the store ``identity`` to the body. ``make_log(index)`` gives a fresh, unopened log for each ownership of a container."""
    actor = StorageActor(chunks, options.storage, world.random)

    def host(index: int) -> ContainerHost:
        def make() -> Container:
            who = Identity(identity.store_id, identity.container_log_id(index), bytes.fromhex(owner_id))
            return Container(index, make_log(index), StorageClient(actor), who, world, options.container)

        return ContainerHost(index, make, options.restart, world.random, options.unavailable_wait)

    hosts = [host(index) for index in range(identity.containers)]
    store = SegmentStore(hosts, append_bytes_max=options.append_bytes_max, rolling_size=options.rolling_size, span=span, storage=actor)
    async with _background(actor.run, actor.stop):
        await actor.wait_active()
        async with _all_running(hosts):
            try:
                for each in hosts:
                    await each.wait_started()
                yield store
            finally:
                store.mark_closed()


@asynccontextmanager
async def _background(run: Callable[[], Awaitable[Any]], stop: Callable[[], None]) -> AsyncIterator[None]:
    """Run ``run`` beside the body; at the body's end, however it ends, ask it to stop and wait for it, out of the cancellation's reach."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        done = anyio.Event()

        async def shielded() -> None:
            # The parts end by their own order (drain, footer), not where a cancellation of the app happens to strike.
            with anyio.CancelScope(shield=True):
                try:
                    await run()
                finally:
                    done.set()

        tasks.start_soon(shielded)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised again below
            # Raised again outside the task group, so that an app's own exception does not come back wrapped in a group.
            failure = error
        finally:
            stop()
            with anyio.CancelScope(shield=True):
                await done.wait()

    if failure is not None:
        raise failure


@asynccontextmanager
async def _all_running(hosts: list[ContainerHost]) -> AsyncIterator[None]:
    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for host in hosts:
                tasks.start_soon(host.run)

    def stop() -> None:
        for host in hosts:
            host.stop()

    async with _background(run, stop):
        yield
