"""A real BookKeeper for tests, where there is Java, and its files are here or can be fetched."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path

import anyio
import pytest

from local_bookkeeper import LocalBookKeeper
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.ledgers.install import MAVEN_CENTRAL, install
from tierlog.storage_backends.ledgers.installed import (
    CLIENT,
    COMPILER,
    FOLDER_VARIABLE,
    SERVER,
    Installation,
    default_folder,
)
from tierlog.storage_backends.ledgers.process import SidecarProgram
from tierlog.storage_backends.ledgers.sidecar import SidecarOptions, SidecarService

_SESSION_SECONDS = 4.0


@cache
def _installed() -> Installation | str:
    """The installation, or why there is none. What is fetched stays in the environment of the tests."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    folder = default_folder() if chosen else Path(sys.prefix) / "share" / "tierlog-bookkeeper"
    installation = Installation(folder)

    async def fetch() -> None:
        mirror = os.environ.get("TIERLOG_MAVEN_MIRROR", MAVEN_CENTRAL)
        await install(installation, server=True, mirror=mirror, advance=lambda done, found: None)

    try:
        _require(installation)
    except TierlogError:
        try:
            anyio.run(fetch)
            _require(installation)
        except TierlogError as error:
            return str(error)
    return installation


def _require(installation: Installation) -> None:
    installation.require([CLIENT, SERVER, COMPILER])
    installation.program()


def installation() -> Installation:
    """Skips the test if Java is missing, or the files can neither be found nor fetched."""
    found = _installed()
    if isinstance(found, str):
        pytest.skip(f"BookKeeper is missing: {found}")
    return found


def program() -> SidecarProgram:
    return installation().program()


@contextmanager
def local_bookkeeper(bookies: int = 3) -> Iterator[LocalBookKeeper]:
    """One at a time, please: it has about 250 MB."""
    folder = Path(tempfile.mkdtemp(prefix="tierlog-bookkeeper-"))
    try:
        with LocalBookKeeper(installation(), folder / "data", bookies=bookies) as service:
            yield service
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def sidecar(servers: str, session_timeout: float = _SESSION_SECONDS) -> AsyncIterator[SidecarService]:
    """A service, whose sidecar starts with the first call."""
    service = SidecarService(program(), SidecarOptions(servers=servers, session_timeout=session_timeout))
    async with anyio.create_task_group() as tasks:
        await tasks.start(service.run)
        try:
            yield service
        finally:
            service.close()


async def pid_of(service: SidecarService) -> int:
    """Of its sidecar, which is the newest of this process."""
    await service.session()
    tasks = Path("/proc/self/task").glob("*/children")
    children = [each for task in tasks for each in task.read_text().split()]
    sidecars = [each for each in children if b"Sidecar" in Path(f"/proc/{each}/cmdline").read_bytes()]
    # Not by number: those begin again at the lowest when they are used up.
    return int(max(sidecars, key=_started_at))


def _started_at(process: str) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])
