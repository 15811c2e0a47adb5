"""The server does what its OpenAPI document says, whatever is sent to it (rule H16)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.from_thread
import pytest

from support.http_server import Wrapped
from support.schema_fuzz import findings
from support.stores import CONFIG
from tierlog import open_store
from tierlog.actors.gateway.server.app import ServerLimits, make_app
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.opening import system_world

DEPENDENT = {
    "append": ["400"],  # an event number needs a writer, and is larger than the one before
    "bytes": ["400"],  # a range does not go backwards
    "merge": ["400"],  # no source is the target, and none is given twice
    # A staged segment's name is longer than its target's, and both have one bound.
    "begin-transaction": ["400"],
    "stage-segment": ["400"],
    "commit-transaction": ["400"],
    "abort-transaction": ["400"],
    "transaction-info": ["400"],
}


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    async with open_store(folder / "data", containers=1, config=CONFIG) as store:

        async def tail(
            name: str, offset: int = 0, *, block_size: int = 1 << 20
        ) -> AsyncGenerator[bytes, None]:
            """Ends at the tail: a stream that waits for the next append would wait forever."""
            block = await store.read(name, offset, block_size)
            if block:
                yield block

        app = make_app(Wrapped(store, tail=tail), system_world(), limits=ServerLimits())
        async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as server:
            yield server.url


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(served(tmp_path)) as found,
    ):
        yield found


@pytest.mark.timeout(120)
def test_h16_generated_requests_get_answers_that_the_document_names(url: str) -> None:
    found, count = findings(url, examples=8, refusals=DEPENDENT)

    assert found == []
    assert count > 400


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_h16_many_generated_requests_get_answers_that_the_document_names(url: str) -> None:
    found, _ = findings(url, examples=100, refusals=DEPENDENT)

    assert found == []
