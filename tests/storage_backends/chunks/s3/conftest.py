"""The servers start here, once for all tests of this folder; each test has a prefix or a bucket of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.s3 import BUCKET, local_server, moto_server
from tierlog.testing.s3_server import LocalS3Server


@pytest.fixture(scope="session")
def _local() -> Iterator[LocalS3Server]:
    with local_server() as server:
        yield server


@pytest.fixture
def server(_local: LocalS3Server) -> LocalS3Server:
    """Our own server with an empty bucket, and nothing that was told to fail."""
    _local.forget_faults()
    _local.seen.clear()
    _local.buckets.clear()
    _local.page_size = 1000
    _local.add_bucket(BUCKET)
    return _local


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    with moto_server() as url:
        yield url
