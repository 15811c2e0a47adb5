"""How a sidecar is started: a JVM whose standard input is a socket. It ends with that socket, hence with this
process, however this process ends. It has a session of its own, so Ctrl-C in a terminal does not reach it.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import attrs

from ..base.errors import Unavailable
from ..base.values import Value

_SOCKET_BYTES = 1 << 20
_ENDING_SECONDS = 2.0
_COMPLAINT_BYTES = 4096


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SidecarProgram(Value):
    """What is installed."""

    java: str = "java"
    jars: str
    """The folder of the clients' jars."""
    classes: str
    """The folder of the sidecar's classes."""
    heap_mb: int = 128
    direct_mb: int = 96

    def command(self) -> list[str]:
        return [
            self.java,
            f"-Xmx{self.heap_mb}m",
            f"-XX:MaxDirectMemorySize={self.direct_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-Xshare:auto",
            *self._archive(),
            # The client's own copies of what it sends come from the heap, which is bounded.
            "-Djdk.nio.maxCachedBufferSize=262144",
            "-Dslf4j.internal.verbosity=ERROR",
            "-Dio.netty.tryReflectionSetAccessible=false",
            "-cp",
            f"{self.classes}:{self.jars}/*",
            "Sidecar",
        ]

    def _archive(self) -> list[str]:
        archive = Path(self.classes, "sidecar.jsa")
        return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


class Complaint:
    """The last lines that a sidecar wrote on standard error."""

    def __init__(self) -> None:
        self._data = b""

    async def read(self, stream: anyio.abc.ByteReceiveStream) -> None:
        async for data in stream:
            self._data = (self._data + data)[-_COMPLAINT_BYTES:]

    def __str__(self) -> str:
        lines = self._data.decode(errors="replace").strip()
        return f": {lines}" if lines else ""


@asynccontextmanager
async def started(program: SidecarProgram) -> AsyncIterator[tuple[anyio.abc.Process, socket.socket]]:
    """A sidecar and the socket to it. Ends it at the end, in any case. Raises ``Unavailable`` if there is no
    Java."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
            try:
                process = await anyio.open_process(
                    program.command(),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    cwd=program.classes,
                    start_new_session=True,
                )
            except OSError as error:
                raise Unavailable(f"the sidecar for BookKeeper cannot be started: {error}") from error
        try:
            yield process, ours
        finally:
            ours.close()
            await _ended(process)


async def _ended(process: anyio.abc.Process) -> None:
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(_ENDING_SECONDS):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
        await process.aclose()
