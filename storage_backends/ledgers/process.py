"""How a sidecar is started: a JVM whose standard input is a socket. It ends with that socket, hence with this
process, however this process ends (rule B11). It has a session of its own, so Ctrl-C in a terminal does not
reach it.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.to_thread
import attrs

from ..base.errors import ConfigError
from ..base.ledger_service import SidecarNotStarted
from ..base.values import Value

HEAP_MB = 128
_DIRECT_MB = 96
"""Besides the heap: buffers of connections."""
_SOCKET_BYTES = 1 << 20
_ENDING_SECONDS = 2.0
_COMPLAINT_BYTES = 4096


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SidecarProgram(Value):
    """What is installed."""

    java: str
    class_path: tuple[str, ...]
    folder: str
    """In which it runs."""
    heap_mb: int = HEAP_MB
    check: Callable[[], None] = lambda: None
    """Raises ``ConfigError`` if what is installed was damaged since. B11: before each start, because Java
    would name a class and no file."""

    @property
    def room_bytes(self) -> int:
        """B12: of appends under way, and of reads: a quarter of the heap each."""
        return (self.heap_mb << 20) // 4

    def command(self) -> list[str]:
        return [
            self.java,
            f"-Xmx{self.heap_mb}m",
            f"-XX:MaxDirectMemorySize={_DIRECT_MB}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-Xshare:auto",
            # The client's own copies of what it sends come from the heap, which is bounded.
            "-Djdk.nio.maxCachedBufferSize=262144",
            "-Dslf4j.internal.verbosity=ERROR",
            "-Dio.netty.tryReflectionSetAccessible=false",
            "-cp",
            os.pathsep.join(self.class_path),
            "Sidecar",
        ]


class Complaint:
    """The last lines that a sidecar wrote."""

    def __init__(self) -> None:
        self._data = b""
        self.is_complete = anyio.Event()

    async def read(self, stream: anyio.abc.ByteReceiveStream) -> None:
        async for data in stream:
            self._data = (self._data + data)[-_COMPLAINT_BYTES:]
        self.is_complete.set()

    def __str__(self) -> str:
        lines = self._data.decode(errors="replace").strip()
        return f": {lines}" if lines else ""


@asynccontextmanager
async def started(program: SidecarProgram) -> AsyncIterator[tuple[anyio.abc.Process, socket.socket]]:
    """A sidecar and the socket to it. Ends it at the end, in any case. Raises ``SidecarNotStarted`` if
    there is no Java, or the program is damaged."""
    try:
        await anyio.to_thread.run_sync(program.check)
    except ConfigError as error:
        raise SidecarNotStarted(str(error)) from error
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
            try:
                process = await anyio.open_process(
                    program.command(),
                    stdin=theirs.fileno(),
                    # B11: on both, because a JVM without memory says so on standard output.
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=program.folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise SidecarNotStarted(f"the sidecar for BookKeeper cannot be started: {error}") from error
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
