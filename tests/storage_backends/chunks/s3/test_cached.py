"""Warm reads of S3 chunks behind a local chunk cache ask the service for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chunk_caches import cached
from support.s3 import s3_storage
from support.s3_server import S3Server

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop, pytest.mark.usefixtures("reused_clients")]


async def test_k1_a_warm_read_is_no_request(server: S3Server, tmp_path: Path) -> None:
    one = cached(s3_storage(server.url), tmp_path / "cache")
    await one.storage.open()
    await one.storage.create_with_content("a", [b"x" * 3_000_000])
    server.seen.clear()

    assert await one.storage.read("a", 1_048_576, 1_048_576) == b"x" * 1_048_576
    assert server.seen == []
    await one.storage.close()
