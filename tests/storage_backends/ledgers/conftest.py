"""One BookKeeper for all tests of this folder, and one sidecar for each module and event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from local_bookkeeper import LocalBookKeeper
from support.bookkeeper import local_bookkeeper, sidecar
from tierlog.storage_backends.ledgers.sidecar import SidecarService


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Of a module's scope, as the sidecar is."""
    backend: str = request.param
    return backend


@pytest.fixture(scope="session")
def bookkeeper() -> Iterator[LocalBookKeeper]:
    with local_bookkeeper() as service:
        yield service


@pytest.fixture(scope="module")
async def service(bookkeeper: LocalBookKeeper, anyio_backend: str) -> AsyncIterator[SidecarService]:
    async with sidecar(bookkeeper.servers) as service:
        yield service
