"""One gateway for all tests of this folder that a process runs; where it cannot be had they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_gateway import AWS_ENVIRONMENT, NoGateway, S3Gateway, find_gateway

from chaos_parts.processes import free_port
from support.s3 import ClientPool, s3_clients
from tierlog.storage_backends.chunks import s3_requests


@pytest.fixture(scope="session")
def _gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Gateway]:
    try:
        program = find_gateway()
    except NoGateway as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("gateway")
    with S3Gateway([program], folder, address="127.0.0.1", port=free_port()) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def _clients() -> ClientPool:
    return ClientPool()


@pytest.fixture
def gateway(
    _gateway: S3Gateway, _clients: ClientPool, monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Gateway]:
    """With an empty bucket."""
    _gateway.remove_bucket()
    _gateway.add_bucket()
    with s3_clients(AWS_ENVIRONMENT):
        monkeypatch.setattr(s3_requests, "make_client", _clients.client)
        yield _gateway
