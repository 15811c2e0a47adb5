"""The server starts here, once for all tests of this folder, and is empty at the start of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.s3 import ClientPool, s3_server
from support.s3_server import S3Server
from tierlog.storage_backends.chunks import s3_requests


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Select tests: of a class with ``short`` all other tests are extended; of one with ``extended``,
    these."""
    for item in items:
        if isinstance(item, pytest.Function) and (
            item.function not in getattr(item.cls, "short", [item.function])
            or item.function in getattr(item.cls, "extended", ())
        ):
            item.add_marker(pytest.mark.extended)


@pytest.fixture(scope="session")
def _server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def server(_server: S3Server) -> S3Server:
    _server.reset()
    return _server


@pytest.fixture(scope="session")
def _clients() -> ClientPool:
    return ClientPool()


@pytest.fixture
def reused_clients(_clients: ClientPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storages open clients that earlier tests closed."""
    monkeypatch.setattr(s3_requests, "make_client", _clients.client)
