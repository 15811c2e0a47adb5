"""The gate of a simulated process: every call that it makes to files, log or chunks passes here.

The gate counts calls, makes them take time, holds them while the process is frozen and refuses them once it
is dead. Every call passes before its effect, and once more before its answer is used. A frozen process stops
at either point, so its effect may be in the world before the process knows; its timers run, and what they
start waits here. Resumed, it continues where it was: a zombie, if another process owns the store by then.

A dead process never passes: its calls raise ``Killed``, which no part of a store takes for an error, so that
everything unwinds, shielded or not, and nothing in its ``finally`` blocks has an effect.
"""

from __future__ import annotations

import errno
from collections.abc import Coroutine, Generator
from random import Random
from typing import Any, Generic, TypeVar

import anyio
import trio

from tierlog.storage_backends.base.files import FileHandle, IoCall, Lock, Read, Sync, Write

from .disk import SimulatedDisk
from .file_layer import OnCall, SimulatedFiles
from .settings import Latency
from .trace import Trace

T = TypeVar("T")


class Killed(BaseException):
    """The process that made this call is dead. Not an error of the call: nobody in the process may handle
    it."""


class Gate:
    """``name`` is the process's in the trace."""

    def __init__(self, name: str, trace: Trace, random: Random, latency: Latency) -> None:
        self.name = name
        self.trace = trace
        self.latency = latency
        self.alive = True
        self.calls = 0
        """How many effects this process has requested."""
        self.freezes = 0
        self._random = random
        self._resumed: trio.Event | None = None
        self._held: list[anyio.Event] = []

    @property
    def frozen(self) -> bool:
        return self._resumed is not None

    # --- the process's life ---

    def freeze(self) -> None:
        if self._resumed is None:
            self._resumed = trio.Event()
            self.freezes += 1

    def resume(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.set()

    def kill(self) -> None:
        """From here on nothing passes; calls that wait at the gate are thrown out."""
        self.alive = False
        self.resume()
        for event in self._held:
            event.set()

    def hold(self, event: anyio.Event) -> None:
        """``event`` ends a wait of this process that must also end when it is killed."""
        self._held.append(event)

    # --- calls ---

    async def enter(self, mean: float, *, give_way: bool = True) -> float:
        """Before an effect: take part of the call's time and wait until the process may go on; returns the
        time left for the answer.

        A call that takes no time still lets others run, unless ``give_way`` is off.
        """
        self.calls += 1
        seconds = self.latency.draw(mean, self._random)
        before = seconds * self._random.random()
        if before:
            await trio.sleep(before)
        elif give_way:
            await trio.lowlevel.checkpoint()
        await self.stay()
        return seconds - before

    async def answer(self, seconds: float) -> None:
        """Between an effect and its answer."""
        if seconds:
            await trio.sleep(seconds)
        await self.stay()

    async def stay(self) -> None:
        """Wait while frozen; ``Killed`` if dead. Lets nobody else run if there is nothing to wait for."""
        while self._resumed is not None:
            await self._resumed.wait()
        if not self.alive:
            raise Killed

    async def stand_still(self) -> None:
        """As ``stay``, out of reach of any timer: one of the call's own, such as a sleep's, would take the
        wait here for its own."""
        if self._resumed is not None:
            with trio.CancelScope(shield=True):
                await self.stay()
        if not self.alive:
            raise Killed

    async def guard(self, call: Coroutine[Any, Any, T]) -> T:
        """Run ``call`` so that it takes no step while the process is frozen, and none at all once it is dead.

        An effect behind a wait of ``call`` itself is held back like one that begins at the gate.
        """
        return await _Guarded(self, call)

    def check_alive(self) -> None:
        """For calls that cannot wait."""
        if not self.alive:
            raise OSError(errno.EIO, "this simulated process is dead")


class _Guarded(Generic[T]):
    """Passes what trio sends to the call on to it, but only after another check of the gate."""

    def __init__(self, gate: Gate, call: Coroutine[Any, Any, T]) -> None:
        self._gate = gate
        self._call = call

    def __await__(self) -> Generator[Any, Any, T]:
        call, sent = self._call, None
        while True:
            try:
                asked = call.send(sent)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            sent = yield asked
            try:
                yield from self._gate.stand_still().__await__()
            except BaseException as error:  # noqa: BLE001 - it is the call that has to end with it
                yield from _unwind(call, error, asked, sent)


class GatedFiles(SimulatedFiles):
    """One process's files on ``disk``, behind its gate."""

    def __init__(
        self, disk: SimulatedDisk, gate: Gate, on_call: OnCall | None = None, *, interleave: bool = True
    ) -> None:
        super().__init__(disk, on_call, interleave=interleave)
        self._gate = gate

    def _sibling(self) -> GatedFiles:
        return GatedFiles(self.disk, self._gate, interleave=self.interleave)

    @property
    def alive(self) -> bool:
        return self._gate.alive and super().alive

    def peek(self, handle: FileHandle, offset: int, size: int) -> bytes:
        self._gate.check_alive()
        return super().peek(handle, offset, size)

    def peek_named(self, handle: FileHandle) -> bool:
        self._gate.check_alive()
        return super().peek_named(handle)

    async def _begin(self) -> None:
        if self.interleave:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
            await self._gate.stay()

    async def _turn(self, call: IoCall, scope: anyio.CancelScope) -> None:
        latency = self._gate.latency
        mean = latency.sync if type(call) is Sync else latency.files
        # A call's answer is nothing but the next call's beginning, so all its time passes here.
        await self._gate.answer(await self._gate.enter(mean, give_way=self.interleave))

    async def _resume(self, scope: anyio.CancelScope) -> None:
        await self._gate.stay()

    async def _end(self, scope: anyio.CancelScope) -> None:
        await self._gate.stay()

    def _do(self, call: IoCall) -> Any:
        self._note(call)
        return super()._do(call)

    async def _lock(self, call: Lock, scope: anyio.CancelScope) -> bool:
        self._note(call)
        return await super()._lock(call, scope)

    def _write_part(self, call: IoCall, size: int) -> None:
        if size > 0:
            self._gate.trace.note(self._gate.name, f"{describe(call)}, of these {size}")
        super()._write_part(call, size)

    def _note(self, call: IoCall) -> None:
        self._gate.trace.note(self._gate.name, describe(call))


def describe(call: IoCall) -> str:
    """``Write wal/0000/register 512``: the verb, what it is about, and a size if it has one."""
    verb, path = type(call).__name__, path_of(call)
    if type(call) is Write:
        return f"{verb} {path} {call.offset}+{sum(map(len, call.buffers))}"
    if type(call) is Read:
        return f"{verb} {path} {call.offset}+{call.size}"
    return f"{verb} {path}"


def path_of(call: IoCall) -> str:
    """The path that ``call`` is about; of two, the new one."""
    for attribute in ("handle", "target", "path"):
        found = getattr(call, attribute, None)
        if found is not None:
            return str(found.path if isinstance(found, FileHandle) else found)
    return ""


def _unwind(
    call: Coroutine[Any, Any, T], error: BaseException, asked: Any, sent: Any
) -> Generator[Any, Any, None]:
    """End a call whose process was stopped when trio had ``sent`` it what it ``asked`` for: it may wait on
    its way out, for children of its own that end likewise, and do nothing else."""
    thrown: BaseException | None = error
    if _is_end_of_nursery(asked):

        def raise_error() -> None:
            raise error

        # As trio gives an interrupt to a nursery that waits for its children: it leaves with it. Thrown, it
        # would leave the nursery open, and that around it would find another one in its place.
        asked.abort_func(raise_error)
        thrown = None
    while True:
        try:
            asked = call.send(sent) if thrown is None else call.throw(thrown)
        except StopIteration:
            raise AssertionError("a call went on after its process was stopped") from error
        try:
            thrown, sent = None, (yield asked)
        except BaseException as another:  # noqa: BLE001 - as above
            thrown = another


def _is_end_of_nursery(asked: Any) -> bool:
    """Whether a task asked trio to wait until the children of its newest nursery have ended."""
    abort = getattr(asked, "abort_func", None)
    return getattr(abort, "__qualname__", "").startswith("Nursery.")
