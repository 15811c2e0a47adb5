"""One simulated process: a whole store, as ``serve`` runs it, over files, log and chunks behind one gate.

Its clients live in it as they do in an app. A kill shuts the gate first; then everything of the process is
cancelled, its clients' calls too, and the store's ``finally`` blocks find the gate shut. ``ended`` is set
when the last task is gone, which may take some virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import anyio
import trio

from tierlog.actors.container.container import Container
from tierlog.actors.kernel.exits import first_leaf, leaves
from tierlog.actors.store.store import SegmentStore

from .file_layer import SimulatedFiles
from .gates import Gate, Killed

T = TypeVar("T")


class ProcessDied(Exception):
    """The process was killed: whether the call had an effect cannot be known."""


class Process:
    """``opening`` makes the store that it serves. ``files`` gives its locks back when it dies."""

    def __init__(
        self,
        number: int,
        gate: Gate,
        files: SimulatedFiles,
        opening: Callable[[], AbstractAsyncContextManager[SegmentStore]],
    ) -> None:
        self.number = number
        self.began = trio.current_time()
        self.gate = gate
        self.error: BaseException | None = None
        """Why it ended, if it was neither stopped nor killed."""
        self.ended_cleanly = False
        """Whether it was stopped and has ended, without an error and unharmed."""
        self.opened = anyio.Event()
        """It serves, or never will."""
        self.served_from: float | None = None
        """When it had opened its store."""
        self.ended = anyio.Event()
        self.clock_offset = 0.0
        """Seconds that its wall clock is ahead of the world's."""
        self._files = files
        self._opening = opening
        self._store: SegmentStore | None = None
        self._scope = trio.CancelScope()
        self._stop = anyio.Event()
        self._calls: dict[trio.CancelScope, None] = {}

    def __repr__(self) -> str:
        return f"<Process {self.number} {'frozen' if self.frozen else 'alive' if self.alive else 'dead'}>"

    @property
    def store(self) -> SegmentStore:
        if self._store is None:
            raise RuntimeError(f"process {self.number} has not opened its store")
        return self._store

    @property
    def alive(self) -> bool:
        return self.gate.alive

    @property
    def frozen(self) -> bool:
        return self.gate.frozen

    @property
    def serving(self) -> bool:
        """Whether it has opened its store and goes on."""
        return self._store is not None and self.alive and not self.ended.is_set()

    def containers(self) -> list[Container]:
        """The ownerships that answer now."""
        if self._store is None:
            return []
        return [
            container.active for container in self._store.local_containers if container.active is not None
        ]

    # --- life ---

    async def run(self) -> None:
        try:
            with self._scope:
                async with self._opening() as store:
                    self._store = store
                    self.served_from = trio.current_time()
                    self.gate.trace.note(self.gate.name, "serves")
                    self.opened.set()
                    await self._stop.wait()
            self.ended_cleanly = self.alive
        except BaseException as error:
            if not _is_end(error):
                raise
            if self.alive and isinstance(cause := first_leaf(error), Exception):
                self.error = cause
        finally:
            self.gate.trace.note(
                self.gate.name, f"ended{f' by {type(self.error).__name__}' if self.error else ''}"
            )
            self._leave()

    def _leave(self) -> None:
        # What is left of a process that ended by itself must not count as a living one, nor hold locks.
        self.gate.kill()
        self._files.kill()
        self.opened.set()
        self.ended.set()

    def kill(self) -> None:
        """As SIGKILL: nothing of it gets out from here on. Its writes stay in the page cache, its locks are
        free."""
        if not self.alive:
            return

        self.gate.trace.note(self.gate.name, "killed")
        self.end()

    def end(self) -> None:
        """What follows a kill, or a power loss that has shut the gate already."""
        self.gate.kill()
        self._files.kill()
        self._scope.cancel()
        for call in self._calls:
            call.cancel()

    def freeze(self) -> None:
        """As SIGSTOP: each effect, and each answer, waits for ``resume``. Locks stay held."""
        if self.alive and not self.frozen:
            self.gate.trace.note(self.gate.name, "frozen")
            self.gate.freeze()

    def resume(self) -> None:
        if self.frozen:
            self.gate.trace.note(self.gate.name, "resumed")
            self.gate.resume()

    async def stop(self) -> None:
        """The clean end. Returns when it has ended; a frozen process ends once it is resumed."""
        self._stop.set()
        await self.ended.wait()

    def jump_clock(self, seconds: float) -> None:
        self.gate.trace.note(self.gate.name, f"clock jumps by {seconds:g} s")
        self.clock_offset += seconds

    # --- clients ---

    async def call(self, verb: Callable[[SegmentStore], Awaitable[T]]) -> T:
        """A client's call in this process. No answer leaves it while it is frozen; once it is dead there is
        only ``ProcessDied``."""
        with trio.CancelScope() as scope:
            self._calls[scope] = None
            try:
                await self.gate.stay()
                answer = await verb(self.store)
                await self.gate.stay()
                return answer
            except Killed:
                pass
            except Exception:
                with trio.CancelScope(shield=True):
                    await self._stay_to_fail()
                raise
            except BaseExceptionGroup as error:  # of a call that asks all containers
                if not any(isinstance(leaf, Killed) for leaf in leaves(error)):
                    raise
            finally:
                del self._calls[scope]
        raise ProcessDied(f"process {self.number} was killed")

    async def _stay_to_fail(self) -> None:
        """An error is an answer too."""
        try:
            await self.gate.stay()
        except Killed as error:
            raise ProcessDied(f"process {self.number} was killed") from error


def _is_end(error: BaseException) -> bool:
    """Whether this ends the process only, and not the simulation: its own failure, a kill, a cancellation of
    the world around it."""
    return all(isinstance(leaf, (Killed, trio.Cancelled, Exception)) for leaf in leaves(error))
