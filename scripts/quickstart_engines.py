"""What the store of a quickstart on several machines is on: an engine starts a service, names the place in
it, and ends it.

As a program this module is the tests' S3 server, which stands in where no gateway can be had: it prints its
URL, and ends when its standard input does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s3_gateway import (
    AWS_ENVIRONMENT,
    BUCKET,
    VERSION,
    NoGateway,
    S3Gateway,
    can_be_had,
    find_gateway,
    is_there,
)

from chaos_parts.processes import SCRIPTS, RunError, free_port, python_path
from chaos_parts.service import TIERLOG
from local_bookkeeper import LocalBookKeeper
from tierlog.storage_backends.base.errors import ConfigError
from tierlog.storage_backends.ledgers.installed import CLIENT, SERVER, Installation, default_folder

_TESTS = SCRIPTS.with_name("tests")


class Engine(ABC):
    place: str
    """The store, as `--join` takes it."""
    config = ""
    """Lines of a tierlog.toml."""
    shown: str
    """What runs, in words."""

    @contextmanager
    @abstractmethod
    def running(self, folder: Path) -> Iterator[None]:
        """The service, with its files in the new ``folder``. The environment gets what its clients need."""


class S3Engine(Engine):
    place = f"s3://{BUCKET}/quickstart"

    @contextmanager
    def running(self, folder: Path) -> Iterator[None]:
        os.environ.update(AWS_ENVIRONMENT)
        folder.mkdir()
        if can_be_had() and not is_there(os.environ):
            print(
                f"Go builds the S3 gateway versitygw {VERSION}, once; that takes about a minute", flush=True
            )
        try:
            program = find_gateway()
        except NoGateway as reason:
            with _test_server(folder, reason) as url:
                self._found(url, f"the tests' S3 server, because {reason}")
                yield
        else:
            with S3Gateway([program], folder, address="127.0.0.1", port=free_port()) as gateway:
                self._found(gateway.url, f"the S3 gateway versitygw {VERSION}")
                yield

    def _found(self, url: str, shown: str) -> None:
        self.config = f'[s3]\nendpoint = "{url}"\n'
        self.shown = f"{shown}, at {url}"


@contextmanager
def _test_server(folder: Path, reason: NoGateway) -> Iterator[str]:
    """Its URL."""
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "quickstart_engines"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=python_path(str(_TESTS)),
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        if not url:
            raise RunError(f"{reason}; and the tests' S3 server does not start: see {log.name} with --keep")
        yield url
    finally:
        process.kill()
        process.communicate()


class BookKeeperEngine(Engine):
    """The log is in BookKeeper, which keeps no chunks: they are in a folder that the machines share."""

    @contextmanager
    def running(self, folder: Path) -> Iterator[None]:
        (folder / "chunks").mkdir(parents=True)
        installation = Installation(default_folder())
        try:
            installation.require([CLIENT, SERVER])
            installation.program()
        except ConfigError:
            done = subprocess.run([*TIERLOG, "bookkeeper", "install", "--server"], check=False)
            if done.returncode:
                raise RunError("BookKeeper could not be installed; the lines above say why") from None
        with LocalBookKeeper(installation, folder / "data") as service:
            self.place = f"bookkeeper://{service.servers}/quickstart"
            self.config = f'chunks = "{folder / "chunks"}"\nbookkeeper.folder = "{installation.folder}"\n'
            self.shown = "ZooKeeper and three bookies, in one process"
            yield


ENGINES: dict[str, type[Engine]] = {"bookkeeper": BookKeeperEngine, "s3": S3Engine}


def main() -> None:
    from support.s3_server import S3Server

    with S3Server() as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
