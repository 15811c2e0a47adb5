"""A data folder that is not there yet, the command line that works on it by default, and a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Run, in_this_process
from support.s3_server import S3Server


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


@pytest.fixture
def server(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An empty bucket, and an environment in which AWS is that server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
    return server
