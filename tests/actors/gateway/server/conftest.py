"""The server runs on asyncio, as its processes do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.http_server import ServedStore, service


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def served(tmp_path: Path, anyio_backend: str) -> AsyncIterator[ServedStore]:
    async with service(tmp_path) as running:
        yield running


@pytest.fixture
async def a(served: ServedStore) -> ServedStore:
    """The same with a segment, ``a``."""
    await served.store.create_segment("a")
    return served
