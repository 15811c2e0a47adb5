"""The S3 server of the tests of stores, services and the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.s3 import ClientPool, s3_server
from support.s3_server import S3Server
from tierlog.storage_backends.chunks import s3_requests


@pytest.fixture(scope="module")
def _server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def _clients() -> ClientPool:
    return ClientPool()


@pytest.fixture
def server(_server: S3Server, _clients: ClientPool, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    _server.reset()
    monkeypatch.setattr(s3_requests, "make_client", _clients.client)
    return _server
