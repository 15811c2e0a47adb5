"""What operators and their tools ask a server: health, readiness, metrics, the container map, a small page,
and whether a container may delete what it does not know.

``/health`` means that the event loop runs: a process that recovers is alive. It also names the health of
long-term storage, which is not a reason to end a process: appends go on, and flushes resume by themselves
(rule S7). ``/ready`` means that every container that is served here is active.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ....storage_backends.base.backups import BackupStep
from ....storage_backends.base.errors import (
    BackupExists,
    BackupIncomplete,
    BackupNotFound,
    DataCorruption,
    NotOwner,
    StorageFull,
    Throttled,
)
from ...chunk_io.health import StorageHealthStatistics
from ...telemetry.metrics import CONTENT_TYPE
from ..wire import paths
from ..wire.bodies import (
    JSON_TYPE,
    BackupEntry,
    Backups,
    BackupStepDone,
    ContainerMap,
    Empty,
    Health,
    HostStatus,
    Nothing,
    StorageHealth,
    TakeBackupStep,
    Unconfirmed,
)
from ..wire.errors import NoSuchContainer
from .call import Answer, Call, json_answer
from .endpoint import BODY_ERRORS, Success, endpoint

if TYPE_CHECKING:
    from ...container.container import Container

HTML = Success(200, "HTML.", "text/html; charset=utf-8", str)
SCRAPE = Success(200, "One scrape.", CONTENT_TYPE, str)


@endpoint("GET", paths.CONTAINERS, "containers", help="The answer.")
async def containers(call: Call) -> ContainerMap:
    """Which host serves which container."""
    return call.server.container_map()


@endpoint("GET", paths.HEALTH, "health")
async def health(call: Call) -> Health:
    """Whether the process is alive."""
    storage = call.server.store.statistics().storage
    found = StorageHealthStatistics() if storage is None else storage.health
    return Health(alive=True, storage=StorageHealth(**found.document()))


@endpoint(
    "GET",
    paths.READY,
    "ready",
    successes=(
        Success(200, "Every container is active.", JSON_TYPE, HostStatus),
        Success(503, "Not yet, or not any more.", JSON_TYPE, HostStatus),
    ),
)
async def ready(call: Call) -> Answer:
    """Whether every container that is served here is active."""
    status = call.server.status()
    # Load balancers and Kubernetes look at the status only.
    return json_answer(status, 200 if status.ready else 503)


@endpoint("GET", paths.METRICS, "metrics", successes=(SCRAPE,))
async def metrics(call: Call) -> Answer:
    """All metrics, in Prometheus' text format."""
    server = call.server
    return Answer(200, server.metrics.render(lambda: (server.store.statistics(),)), CONTENT_TYPE)


@endpoint("GET", "/", "page", successes=(HTML,))
async def page(call: Call) -> Answer:
    """The status as a page."""
    status = call.server.status()
    rows = "".join(
        f"<tr><td>{container.container}</td><td>{escape(container.state)}</td></tr>"
        for container in status.containers
    )
    word = "draining" if status.draining else "ready" if status.ready else "not ready"
    body = _PAGE.format(word=word, tails=call.server.tails, rows=rows)
    return Answer(200, body.encode(), "text/html; charset=utf-8")


@endpoint(
    "GET",
    f"{paths.CONTAINERS}/{{container}}/unconfirmed",
    "unconfirmed",
    NoSuchContainer,
    NotOwner,
    Throttled,
    DataCorruption,
    help="The answer.",
)
async def unconfirmed(call: Call) -> Unconfirmed:
    """What nothing refers to, and why the container does not delete it by itself. Lists its chunks."""
    index = checked_container(call)
    # To list millions of chunks must not outlast the client that asked.
    async with call.while_connected():
        return await call.server.store.on_container(index, _describe_unconfirmed)


async def _describe_unconfirmed(container: Container) -> Unconfirmed:
    record = container.confirmation.unconfirmed
    total = await container.count_garbage()
    return Unconfirmed(
        container.index, "" if record is None else record.explanation, total.chunks, total.bytes
    )


@endpoint(
    "POST",
    f"{paths.CONTAINERS}/{{container}}/confirm",
    "confirm",
    NoSuchContainer,
    NotOwner,
    Throttled,
    StorageFull,
    *BODY_ERRORS,
    help="Done, and durable.",
)
async def confirm(call: Call, body: Nothing) -> Empty:
    """Let the container delete what it does not know, and list its chunks again for what it has missed."""
    index = checked_container(call)
    # Not cancelled if the client goes away: whether it is confirmed must not depend on that.
    await call.server.store.on_container(index, lambda container: container.confirm())
    return Empty()


@endpoint(
    "GET",
    f"{paths.CONTAINERS}/{{container}}/backups",
    "backups",
    NoSuchContainer,
    NotOwner,
    Throttled,
    DataCorruption,
    help="The answer.",
)
async def backups(call: Call) -> Backups:
    """The backups in long-term storage, as the container's host sees it: the same for all containers."""
    # Not above: a supervisor has these endpoints too, and no container.
    from ...container.pins import list_backups

    index = checked_container(call)
    found = await call.server.store.on_container(index, list_backups)
    return Backups(tuple(BackupEntry(b.name, b.created_ms, b.containers, b.problem) for b in found))


@endpoint(
    "POST",
    f"{paths.CONTAINERS}/{{container}}/backup-steps",
    "backup-step",
    NoSuchContainer,
    NotOwner,
    Throttled,
    StorageFull,
    DataCorruption,
    BackupExists,
    BackupIncomplete,
    BackupNotFound,
    *BODY_ERRORS,
    help="Done, and durable.",
)
async def backup_step(call: Call, body: TakeBackupStep) -> BackupStepDone:
    """Take one step of making or removing a backup."""
    index = checked_container(call)
    positions = tuple((each.n, each.crc) for each in body.elements)
    step = BackupStep(index, body.kind, body.name, body.token, positions)
    # Not cancelled if the client goes away: its repeat finds the same.
    answer = await call.server.store.take_backup_step(step)
    return BackupStepDone(*answer.position, answer.found)


def checked_container(call: Call) -> int:
    count = call.server.store.containers
    if call.container >= count:
        raise NoSuchContainer(f"no container {call.container}: the containers are 0 to {count - 1}")

    return call.container


_PAGE = """<!doctype html>
<title>tierlog</title>
<h1>tierlog: {word}</h1>
<p>{tails} readers wait at tails.
See <a href="/metrics">metrics</a> and the <a href="/openapi.json">API</a>.</p>
<table><tr><th>container</th><th>state</th></tr>{rows}</table>
"""
