"""The server does what its OpenAPI document says, whatever is sent to it (rule H16)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from support.http_server import Wrapped
from support.schema_fuzz import SchemaTests
from support.stores import CONFIG
from tierlog import open_store
from tierlog.actors.gateway.server.app import ServerLimits, make_app
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world


class TestServer(SchemaTests):
    refusals: ClassVar = {
        "append": ["400"],  # an event number needs a writer, and is larger than the one before
        "append-starts": ["400"],  # a range does not go backwards
        "bytes": ["400"],  # nor does this one
        "layout": ["400"],  # nor this one
        "attributes": ["400"],  # an update has a name or an id, and not both
        "list-attributes": ["400"],  # ids, and how they begin, are given in hex
        "list": ["400"],  # a token is one that a page gave
        "list-transactions": ["400"],
        "merge": ["400"],  # no source is the target, and none is given twice
        # A staged segment's name is longer than its target's, and both have one bound.
        "begin-transaction": ["400"],
        "stage-segment": ["400"],
        "commit-transaction": ["400"],
        "abort-transaction": ["400"],
        "transaction-info": ["400"],
        "update-rows": ["400"],  # a key is named once, and something is named
        "get-rows": ["400"],  # a key of this length in base64 may be longer than a key
        "page-of-rows": ["400"],  # a token is one that a page gave
        "page-of-changes": ["400"],
        "session": ["400"],  # it takes an upgrade, which no document can describe
    }
    requests_min = 150

    @asynccontextmanager
    async def served(self, folder: Path) -> AsyncIterator[str]:
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
