"""Two hosts in one-port mode over one store: each serves one of its two containers, and passes requests for
the other one on to the other host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from support.http_server import ServedStore, serving
from support.stores import CONFIG
from tierlog import SegmentStore, open_store
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.wire.bodies import ContainerAssignment, ContainerMap
from tierlog.storage_backends.base.names import container_of


def name_in(container: int, prefix: str = "s") -> str:
    """A segment's name in this one of two containers."""
    return next(name for number in range(100) if container_of(name := f"{prefix}{number}", 2) == container)


@attrs.define
class Places:
    """What one host knows of the containers: those it serves, and the URLs of the others' hosts."""

    served: set[int]
    urls: dict[int, str] = attrs.field(factory=dict)
    own: str = ""

    def map(self) -> ContainerMap:
        return ContainerMap(
            1,
            tuple(
                ContainerAssignment(index, self.own, 1)
                if index in self.served
                else ContainerAssignment(index, self.urls.get(index), None)
                for index in range(2)
            ),
        )

    def options(self) -> dict[str, Any]:
        return {
            "container_map": self.map,
            "owner_of": self.urls.get,
            "serves": self.served.__contains__,
        }


@attrs.define
class Host:
    served: ServedStore
    places: Places

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.served.port}"

    def forwarded(self, operation: str) -> int:
        return self.served.gateway.metrics.operation(operation).forwarded

    def answered(self) -> int:
        return self.served.gateway.metrics.requests()


@asynccontextmanager
async def host(
    store: Any, served: set[int], limits: ServerLimits | None = None, **options: Any
) -> AsyncIterator[Host]:
    places = Places(served)
    async with serving(store, limits, **{**places.options(), **options}) as running:
        made = Host(running, places)
        places.own = made.url
        yield made


@asynccontextmanager
async def two_hosts(
    folder: Path, limits: ServerLimits | None = None, **options: Any
) -> AsyncIterator[tuple[SegmentStore, Host, Host]]:
    """The store, and the hosts of its containers 0 and 1."""
    async with (
        open_store(folder / "data", containers=2, config=CONFIG) as store,
        host(store, {0}, limits, **options) as first,
        host(store, {1}, limits, **options) as second,
    ):
        first.places.urls[1], second.places.urls[0] = second.url, first.url
        yield store, first, second
