"""What the store of a chaos run on several machines is on. An engine starts its service on machines of its
own, from which the others can be cut off, and says how processes find the store there.

As a program this module delays what goes through it: it listens at the first address in its arguments, and
passes everything on to the second one. From each line of its standard input on, the first bytes of every
request are so many seconds late; it ends with that input.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from s3_gateway import AWS_ENVIRONMENT, BUCKET, NoGateway, S3Gateway, find_gateway

from chaos_parts.namespaces import Machine, Network
from chaos_parts.processes import SCRIPTS, RunError, python_path
from chaos_parts.units import Unit
from local_bookkeeper import LocalBookKeeper, bookie_command
from tierlog.storage_backends.base.errors import ConfigError
from tierlog.storage_backends.ledgers.installed import CLIENT, SERVER, Installation, default_folder

_SESSION_SECONDS = 4
_BOOKIES = 3
_SLOW_KILOBITS = 2_000
_PORT, _SERVICE_PORT = 9000, 9001
_BLOCK_BYTES = 1 << 16


class Engine(ABC):
    place: str
    """The store, as `--join` and `tierlog.open_store` take it."""
    config: str
    """Lines of a tierlog.toml, while it runs."""
    environment: Mapping[str, str]
    """Of every process that opens the store."""
    goal: float
    """Seconds until another host acks in place of one that is lost, at most."""
    takeover_goal: float
    """Seconds from the order to open a container until it is open, at most."""
    machines: Sequence[Machine]
    """Those of the service, while it runs."""
    bookies: Sequence[Unit] = ()
    """Those that are killed and stopped, while it runs."""

    @contextmanager
    @abstractmethod
    def running(self, network: Network, folder: Path) -> Iterator[None]:
        """The service, on machines that are added to ``network``."""

    @abstractmethod
    def delay(self, seconds: float) -> None:
        """Every request takes this much longer than usual."""


class S3Engine(Engine):
    """A bucket of a real S3 gateway."""

    goal, takeover_goal = 2.0, 1.0

    def __init__(self, request_delay: float) -> None:
        """``request_delay``: seconds that each request takes at least. Raises ``RunError`` without a
        gateway."""
        try:
            self._program = find_gateway()
        except NoGateway as error:
            raise RunError(str(error)) from error
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
        self.machines = [machine]
        self.config = f'[s3]\nendpoint = "http://{machine.address}:{_PORT}"\n'
        gateway = S3Gateway(
            machine.command(str(self._program)), machine.folder, address=machine.address, port=_SERVICE_PORT
        )
        with ExitStack() as stack:
            try:
                stack.enter_context(gateway)
            except NoGateway as error:
                raise RunError(str(error)) from error
            self._front = stack.enter_context(_front(machine))
            self.delay(0)
            assert self._front.stdout is not None
            if not self._front.stdout.readline():
                raise RunError(f"what delays requests to the engine has ended: see {machine.folder}")
            yield

    def delay(self, seconds: float) -> None:
        assert self._front.stdin is not None
        self._front.stdin.write(b"%f\n" % (self._usual + seconds))
        self._front.stdin.flush()


class BookKeeperEngine(Engine):
    """ZooKeeper and three bookies, each a process on a machine of its own; the chunks are in a folder that
    all machines share."""

    goal, takeover_goal = 1.0, 0.7

    def __init__(self) -> None:
        """Raises ``RunError`` without Java, or BookKeeper's files."""
        self._installation = Installation(default_folder())
        try:
            self._installation.require([CLIENT, SERVER])
            self._installation.program()
        except ConfigError as error:
            raise RunError(f"{error} (with --server)") from error
        self.environment = {}

    @contextmanager
    def running(self, network: Network, folder: Path) -> Iterator[None]:
        machine = network.add("zookeeper", folder / "zookeeper")
        self.machines, self._network = [machine], network
        (folder / "chunks").mkdir()
        service = LocalBookKeeper(
            self._installation,
            machine.folder / "data",
            bookies=0,
            address=machine.address,
            under=machine.command(),
        )
        with service:
            self.place = f"bookkeeper://{service.servers}/machines"
            self.config = (
                f'chunks = "{folder / "chunks"}"\n[bookkeeper]\nfolder = "{self._installation.folder}"\n'
                f'timeout = "{_SESSION_SECONDS} s"\n'
            )
            self.bookies = [
                self._bookie(network, folder, number, service.servers) for number in range(1, _BOOKIES + 1)
            ]
            try:
                for bookie in self.bookies:
                    bookie.start()
                for bookie in self.bookies:
                    bookie.wait_ready()
                yield
            finally:
                for bookie in self.bookies:
                    bookie.kill()

    def _bookie(self, network: Network, folder: Path, number: int, servers: str) -> Unit:
        name = f"bookie-{number}"
        machine = network.add(name, folder / name)
        self.machines = [*self.machines, machine]
        command = bookie_command(
            self._installation, machine.folder, servers, interface="eth0", session_seconds=_SESSION_SECONDS
        )
        return Unit(machine, "bookie", command, os.environ, folder / f"{name}.log")

    def delay(self, seconds: float) -> None:
        if seconds:
            for machine in self.machines:
                self._network.slow(machine, _SLOW_KILOBITS)


@contextmanager
def _front(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    places = [f"{machine.address}:{port}" for port in (_PORT, _SERVICE_PORT)]
    with (machine.folder / "front.log").open("wb") as errors:
        process = subprocess.Popen(
            machine.command(sys.executable, "-m", "chaos_parts.engines", *places),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=machine.folder,
            env=python_path(str(SCRIPTS)),
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


# --- the program --------------------------------------------------------------------------------


class _Front:
    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.delay = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: a request follows the answer to the one before."""
        is_answered = asyncio.Event()
        is_answered.set()
        with suppress(OSError):
            answers, requests = await asyncio.open_connection(*self._target)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pass_requests(reader, requests, is_answered))
                    tasks.create_task(_pass_answers(answers, writer, is_answered))
            except* OSError:
                pass
            finally:
                requests.close()
        writer.close()

    async def _pass_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answered: asyncio.Event
    ) -> None:
        while data := await reader.read(_BLOCK_BYTES):
            if is_answered.is_set():
                is_answered.clear()
                await asyncio.sleep(self.delay)
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _pass_answers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answered: asyncio.Event
) -> None:
    while data := await reader.read(_BLOCK_BYTES):
        is_answered.set()
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _run(listen: tuple[str, int], target: tuple[str, int]) -> None:
    front = _Front(target)
    server = await asyncio.start_server(front.serve, *listen, limit=_BLOCK_BYTES)
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async with server:
        async for line in lines:
            front.delay = float(line)
            print(flush=True)


def _place(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    return address, int(port)


def main() -> None:
    import uvloop

    uvloop.run(_run(*map(_place, sys.argv[1:3])))


if __name__ == "__main__":
    main()
