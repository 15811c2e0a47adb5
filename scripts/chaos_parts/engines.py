"""What the store of a chaos run on several machines is on. An engine starts its service on machines of its
own, from which the others can be cut off, and says how processes find the store there.

As a program this module is the S3 service of ``S3Engine``: it reads a number of seconds on each line of its
standard input, by which every answer is delayed from then on, and ends with that input.
"""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from chaos_parts.namespaces import Machine, Network
from chaos_parts.processes import SCRIPTS, RunError, python_path

_PORT = 9000
_TESTS = SCRIPTS.with_name("tests")


class Engine(ABC):
    place: str
    """The store, as `--join` and `tierlog.open_store` take it."""
    config: str
    """Lines of a tierlog.toml."""
    environment: Mapping[str, str]
    """Of every process that opens the store."""
    takeover_goal: float
    """Seconds from the order to open a container until it is open, at most."""
    machines: tuple[Machine, ...]
    """Those of the service, while it runs."""

    @contextmanager
    @abstractmethod
    def running(self, network: Network, folder: Path) -> Iterator[None]:
        """The service, on machines that are added to ``network``."""

    @abstractmethod
    def delay(self, seconds: float) -> None:
        """Every request takes this much longer than usual."""


class S3Engine(Engine):
    """A bucket of the S3 service that the tests use."""

    takeover_goal = 1.0

    def __init__(self, request_delay: float) -> None:
        """``request_delay``: seconds that each request takes at least."""
        _import_server()
        from support.s3_server import AWS_ENVIRONMENT, BUCKET

        self.place = f"s3://{BUCKET}/machines"
        self.environment = {
            **AWS_ENVIRONMENT,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._usual = request_delay

    @contextmanager
    def running(self, network: Network, folder: Path) -> Iterator[None]:
        machine = network.add("engine", folder / "engine")
        self.machines = (machine,)
        self.config = f'[s3]\nendpoint = "http://{machine.address}:{_PORT}"\n'
        log = machine.folder / "s3.log"
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                machine.command(sys.executable, "-m", "chaos_parts.engines", machine.address),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=machine.folder,
                env=python_path(str(_TESTS)),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self.delay(0)
            if not self._process.stdout.readline():
                raise RunError(f"the S3 service has ended: see {log}")
            yield
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()

    def delay(self, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"%f\n" % (self._usual + seconds))
        self._process.stdin.flush()


def _import_server() -> None:
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))


def main() -> None:
    from support.s3_server import S3Server

    with S3Server((sys.argv[1], _PORT)) as server:
        for line in sys.stdin:
            server.delay = float(line)
            print(flush=True)


if __name__ == "__main__":
    main()
