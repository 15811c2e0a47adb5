"""A data folder that is not there yet, the command line that works on it by default, and a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Run, in_this_process
from support.s3 import ClientPool, s3_server
from support.s3_server import S3Server
from tierlog.storage_backends.chunks import s3_requests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Run]:
    """The command line in this process."""
    monkeypatch.setenv("TIERLOG_DATA", str(folder))
    monkeypatch.chdir(folder.parent)
    with in_this_process(capfdbinary) as call:
        yield call


@pytest.fixture(scope="module")
def _server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def _clients() -> ClientPool:
    return ClientPool()


@pytest.fixture
def server(_server: S3Server, _clients: ClientPool, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An empty bucket, and an environment in which AWS is that server."""
    _server.reset()
    monkeypatch.setattr(s3_requests, "make_client", _clients.client)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", _server.url)
    return _server
