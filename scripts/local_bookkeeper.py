"""A BookKeeper on this machine, ZooKeeper and some bookies in one process: for tests and for the quickstart.

It is for trying out, not for keeping anything: what it has is below one folder, and a bookie that was removed
is lost. It listens on the loopback interface, or on another one, and ends with this process, however this
process ends. As a program it runs one until Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.ledgers.install import compile_program
from tierlog.storage_backends.ledgers.installed import (
    CLIENT,
    SERVER,
    Installation,
    JavaProgram,
    default_folder,
)
from tierlog.storage_backends.ledgers.java_runtime import find_java

_SOURCE = Path(__file__).with_name("BookKeeperService.java")
_START_SECONDS = 60.0
_ENDING_SECONDS = 10.0
_SERVICE_MB, _BOOKIE_MB = 160, 96
_JVM = (
    "-Xss512k",
    "-XX:MaxDirectMemorySize=64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.4lw.commands.whitelist=*",
    "-Dslf4j.internal.verbosity=ERROR",
)
_SMALL_BOOKIES = (
    "allowLoopback=true",
    "journalSyncData=true",
    "journalMaxGroupWaitMSec=1",
    "journalPreAllocSizeMB=4",
    "journalMaxSizeMB=64",
    "journalMaxBackups=1",
    "journalWriteBufferSizeKB=64",
    "ledgerStorageClass=org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "allocatorPoolingPolicy=UnpooledHeap",
    "skipListSizeLimit=4194304",
    "skipListArenaChunkSize=1048576",
    "writeBufferSizeBytes=65536",
    "readBufferSizeBytes=4096",
    "numAddWorkerThreads=1",
    "numReadWorkerThreads=1",
    "numLongPollWorkerThreads=0",
    "numHighPriorityWorkerThreads=1",
    "serverNumIOThreads=1",
)


class LocalBookKeeper:
    """``folder`` is created, and is to be removed by the caller afterwards."""

    def __init__(
        self,
        installation: Installation,
        folder: Path,
        *,
        bookies: int = 3,
        address: str = "127.0.0.1",
        interface: str = "lo",
        under: Sequence[str] = (),
    ) -> None:
        """``address`` is that of ``interface``; ``under`` is put before the command line. Raises
        ``ConfigError`` if anything is not installed."""
        settings = [f"listeningInterface={interface}", *_SMALL_BOOKIES]
        arguments = [str(folder), str(bookies), address, *settings]
        self._command = [*under, *_command(installation, folder, _SERVICE_MB), *arguments]
        self._folder, self._address = folder, address
        self._process: subprocess.Popen[str] | None = None
        self.servers = ""
        """The address of ZooKeeper."""

    def __enter__(self) -> Self:
        for each in ("zk", "bookies"):
            (self._folder / each).mkdir(parents=True)
        with (self._folder / "errors").open("w") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            self.servers = f"{self._address}:{int(self._answer())}"
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self) -> None:
        """Return once it has ended."""
        assert self._process is not None
        self._process.wait()

    def add_bookie(self) -> None:
        self._order("add")

    def remove_bookie(self) -> None:
        """The newest one, with what it has."""
        self._order("remove")

    def expire(self, session: int) -> None:
        """End a session of ZooKeeper, as if its process had been silent for too long."""
        self._order(f"expire {session}")

    def _order(self, order: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._process is not None
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], _START_SECONDS)
        line = output.readline() if ready else ""
        if not line:
            errors = (self._folder / "errors").read_text()[-2000:]
            raise RuntimeError(f"the local BookKeeper does not answer: {errors}")
        return line.strip()


def bookie_command(
    installation: Installation, folder: Path, servers: str, *, interface: str, session_seconds: int
) -> list[str]:
    """What runs one more bookie, as a process of its own. ``folder`` has its temporary files, and what it
    keeps, also when it is killed and run again. Raises ``ConfigError`` if anything is not installed."""
    settings = [
        f"listeningInterface={interface}",
        *_SMALL_BOOKIES,
        f"metadataServiceUri=zk+hierarchical://{servers}/ledgers",
        f"zkTimeout={1000 * session_seconds}",
        f"journalDirectory={folder / 'journal'}",
        f"ledgerDirectories={folder / 'ledgers'}",
    ]
    return [*_command(installation, folder, _BOOKIE_MB), "bookie", *settings]


def _command(installation: Installation, folder: Path, heap_mb: int) -> list[str]:
    installation.require([CLIENT, SERVER], "--server")
    java = find_java()
    groups = [CLIENT, SERVER]
    program = JavaProgram("service", {_SOURCE.name: _SOURCE.read_bytes()})
    classes = compile_program(installation, java, program, groups)
    path = os.pathsep.join([str(classes), *installation.class_path(groups)])
    return [java, f"-Xmx{heap_mb}m", *_JVM, f"-Djava.io.tmpdir={folder}", "-cp", path, _SOURCE.stem]


# --- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description="A local BookKeeper for trying tierlog out: ZooKeeper and some bookies in one process, "
        "until Ctrl-C. Nothing of it is kept. Needs Java 17, and `tierlog bookkeeper install --server`."
    )
    parser.add_argument("--bookies", type=int, default=3, help="default: 3")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            suppress(KeyboardInterrupt),
            tempfile.TemporaryDirectory(prefix="tierlog-bookkeeper-") as folder,
            LocalBookKeeper(
                Installation(default_folder()), Path(folder) / "data", bookies=options.bookies
            ) as service,
        ):
            print(f"a BookKeeper with {options.bookies} bookies at {service.servers}; in another terminal:")
            print(
                f"tierlog serve bookkeeper://{service.servers}/my-store --chunks /PATH/OF/A/FOLDER",
                flush=True,
            )
            service.wait()
            sys.exit("the local BookKeeper has ended")
    except (TierlogError, RuntimeError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
