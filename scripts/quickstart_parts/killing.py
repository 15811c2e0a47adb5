"""The parent of the writers: starts them, hears them, and kills them with SIGKILL in the middle.

Owns: the child processes and the tally of what they acked. Does not own: what they write (``writing``), nor what is shown.

The oracle: what a child reported as acked, in the pipe when it died included, every later child must find. A child lives no longer than the
block that started it; on cancellation it is killed and waited for.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import Any

import anyio
import attrs
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from .shares import QuickstartError, Share, digest_of

MESSAGE_BYTES_MAX = 1 << 20


@attrs.define
class Tally:
    """What has happened so far."""

    acked: list[int]
    """Events of each share that are known to be durable."""
    kills: int = 0
    repeated: int = 0
    """Events that were sent a second time."""
    write_seconds: float = 0.0
    flush_seconds: float = 0.0


@attrs.frozen
class Writers:
    """The children, one after the other."""

    command: list[str]
    """Starts one."""
    shares: list[Share]
    tally: Tally
    on_progress: Callable[[], None]
    on_kill: Callable[[int], None]
    """Called with the bytes that were acked before."""

    async def write_all(self, kill_points: list[int]) -> None:
        """Write everything that comes before the flush; kill a writer when so many bytes are acked, for each kill point."""
        begin = time.perf_counter()
        for point in kill_points:
            await self._run(point)
            self.tally.kills += 1
            self.on_kill(self.acked_bytes())

        await self._run(None)
        self.tally.write_seconds = time.perf_counter() - begin

    def acked_bytes(self) -> int:
        return sum(share.bytes_of(events) for share, events in zip(self.shares, self.tally.acked, strict=True))

    async def _run(self, kill_at: int | None) -> None:
        """Run one child until it is done, or until ``kill_at`` bytes are acked."""
        done = killed = False
        async with _child(self.command) as process, aclosing(_messages(process)) as messages:
            assert process.stdin is not None
            async for message in messages:
                done = self._hear(message)
                self.on_progress()
                if killed:
                    continue  # it said this before it died

                if kill_at is not None and self.acked_bytes() >= kill_at:
                    process.send_signal(signal.SIGKILL)
                    killed = True
                elif done:
                    break
                else:
                    await _confirm(process)

            await process.stdin.aclose()
            status = await process.wait()

        if status != (-signal.SIGKILL if killed else 0) or not (done or killed):
            raise QuickstartError(f"a writer stopped by itself with exit status {status}; it says above why")

    def _hear(self, message: dict[str, Any]) -> bool:
        """Count what a child says; True if it is done."""
        match message["event"]:
            case "ready":
                self._check_ready(message)
                self.tally.acked[:] = message["acked"]
            case "acked":
                self.tally.acked[message["segment"]] = message["events"]
            case "done":
                self.tally.repeated += message["repeated"]
                return True
            case "failed":
                raise QuickstartError(message["error"])

        return False

    def _check_ready(self, message: dict[str, Any]) -> None:
        if message["digest"] != digest_of(self.shares):
            raise QuickstartError("the input changed while it was being written: run again")

        for share, acked, found in zip(self.shares, self.tally.acked, message["acked"], strict=True):
            if found < acked:
                raise QuickstartError(
                    f"segment {share.name}, offset {share.bytes_of(found)}: {acked} events were acked, but only {found} are there"
                )


def choose_kill_points(shares: list[Share], kills: int, random: Random) -> list[int]:
    """One random point in each of ``kills`` equal slices of what lies between a tenth and nine tenths of the work."""
    work = sum(share.flushed_bytes for share in shares)
    return [int(work * (0.1 + 0.8 * (index + random.random()) / kills)) for index in range(kills)]


@asynccontextmanager
async def _child(command: list[str]) -> AsyncIterator[Process]:
    # A session of its own: Ctrl-C in the terminal reaches the parent alone, which then ends the child.
    process = await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, start_new_session=True)
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def _messages(process: Process) -> AsyncGenerator[dict[str, Any], None]:
    assert process.stdout is not None
    stream = BufferedByteReceiveStream(process.stdout)
    while True:
        try:
            line = await stream.receive_until(b"\n", MESSAGE_BYTES_MAX)
        except (anyio.EndOfStream, anyio.IncompleteRead):
            return  # a last line without its end was cut off by the kill

        yield json.loads(line)


async def _confirm(process: Process) -> None:
    assert process.stdin is not None
    try:
        await process.stdin.send(b"\n")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # it has ended: its last message or its status will say why
