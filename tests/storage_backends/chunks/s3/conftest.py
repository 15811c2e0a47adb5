"""The servers start here, once for all tests of this folder; each test has a prefix or a bucket of its own.

What is short and what is long of a conformance is decided here, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.s3 import BUCKET, ClientPool, local_server, moto_server
from tierlog.storage_backends.chunks import s3_requests
from tierlog.testing.s3_server import LocalS3Server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a class with ``short`` all other tests are long."""
    for item in items:
        if isinstance(item, pytest.Function) and item.function not in getattr(
            item.cls, "short", [item.function]
        ):
            item.add_marker(pytest.mark.long)


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


@pytest.fixture(scope="session")
def _clients() -> ClientPool:
    return ClientPool()


@pytest.fixture
def reused_clients(_clients: ClientPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storages open clients that earlier tests closed."""
    monkeypatch.setattr(s3_requests, "make_client", _clients.client)
