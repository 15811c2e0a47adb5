"""Faults of calls: when they strike, which kinds each target knows, and the faults that wait for their call.

The wrappers of the contracts (``SimulatedFiles``, ``FaultyChunkStorage``, ``ServiceLog``,
``SimulatedObjects``, ``SimulatedLedgers``) carry them out. Faults respect the contracts: a file call fails
with an ``OSError``, before its effect, after it or after a part of it; ``Close``, ``Lock`` and ``Unlock`` can
only be late. A failed sync loses what it should have saved. ``KILL``, ``FREEZE`` and ``POWER`` strike the
process just before the effect of the call.

Determinism: faults are checked in the order in which they were added; chance comes from the given ``Random``.
Every fault that strikes is a line of the trace.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from random import Random

import anyio
import attrs
import trio

from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.base.files import IoCall
from tierlog.testing import faulty_chunk_storage as chunk

from . import file_layer as file
from .gates import Gate, path_of
from .loop import carry_out
from .trace import Trace


class Target(StrEnum):
    FILES = "files"
    LOG = "log"
    CHUNKS = "chunks"
    OBJECTS = "objects"
    """Requests of a log in a bucket, and of what is beside it, except chunks."""
    LEDGERS = "ledgers"
    """Calls of a log in ledgers."""


class Kind(StrEnum):
    BEFORE = "before"
    """An error, and nothing has happened; of a sync: it has lost what it should have saved."""
    AFTER = "after"
    """It happened, and the answer is lost."""
    LOST = "lost"
    """It did not happen, and the caller cannot know."""
    PARTIAL = "partial"
    """The first ``keep`` bytes of a write arrive."""
    FULL = "full"
    """No room; nothing has happened."""
    STALL = "stall"
    """The call waits ``seconds``, or until the faults are cleared: then it fails."""
    FLIP = "flip"
    """What is read has bit ``bit`` flipped."""
    STALE_LIST = "stale list"
    """A list is the one before."""
    LATE = "late"
    """It happens ``seconds`` later, and the caller cannot know."""
    REPEATED = "repeated"
    """It happens twice, and the second answer arrives."""
    AGAIN = "again"
    """It happens, and once more ``seconds`` later."""
    KILL = "kill"
    FREEZE = "freeze"
    POWER = "power loss"


STRIKES = (Kind.KILL, Kind.FREEZE, Kind.POWER)
_TAKE_SECONDS = (Kind.STALL, Kind.LATE, Kind.AGAIN)
_NAME_VERBS = ("Open", "MakeFolder", "SyncFolder", "ListFolder", "Unlink", "Link", "Rename")
_FILE_VERBS = ("Read", "Write", "Sync", "Allocate", "Extend", "FreeSpace", *_NAME_VERBS)
_OBJECT_CHANGES = ("put", "delete")
LEDGER_CHANGES = (
    "append",
    "recover",
    "create_ledger",
    "delete_ledger",
    "close",
    "create",
    "replace",
    "remove",
)
_LOG_VERBS = ("open", "append", "read", "truncate", "check_space")
KINDS: Mapping[tuple[Target, Kind], tuple[str, ...]] = {
    (Target.FILES, Kind.BEFORE): _FILE_VERBS,
    (Target.FILES, Kind.AFTER): _FILE_VERBS,
    (Target.FILES, Kind.PARTIAL): ("Write",),
    (Target.FILES, Kind.FULL): ("Open", "Write", "Allocate", "Extend"),
    (Target.FILES, Kind.STALL): (),
    (Target.LOG, Kind.BEFORE): _LOG_VERBS,
    (Target.LOG, Kind.AFTER): _LOG_VERBS,
    (Target.LOG, Kind.STALL): _LOG_VERBS,
    (Target.CHUNKS, Kind.BEFORE): (),
    (Target.CHUNKS, Kind.AFTER): ("create", "create_with_content", "write", "concat", "delete"),
    (Target.CHUNKS, Kind.LOST): ("create", "create_with_content", "write", "concat", "delete"),
    (Target.CHUNKS, Kind.PARTIAL): ("write",),
    (Target.CHUNKS, Kind.FULL): ("create", "create_with_content", "write", "concat"),
    (Target.CHUNKS, Kind.STALL): (),
    (Target.CHUNKS, Kind.FLIP): ("read",),
    (Target.CHUNKS, Kind.STALE_LIST): ("list",),
    (Target.OBJECTS, Kind.BEFORE): (),
    (Target.OBJECTS, Kind.AFTER): (),
    (Target.OBJECTS, Kind.LOST): _OBJECT_CHANGES,
    (Target.OBJECTS, Kind.LATE): _OBJECT_CHANGES,
    (Target.OBJECTS, Kind.REPEATED): _OBJECT_CHANGES,
    (Target.OBJECTS, Kind.AGAIN): _OBJECT_CHANGES,
    (Target.OBJECTS, Kind.STALL): (),
    (Target.LEDGERS, Kind.BEFORE): (),
    (Target.LEDGERS, Kind.AFTER): (),
    (Target.LEDGERS, Kind.LOST): LEDGER_CHANGES,
    (Target.LEDGERS, Kind.LATE): LEDGER_CHANGES,
    (Target.LEDGERS, Kind.REPEATED): LEDGER_CHANGES,
    (Target.LEDGERS, Kind.AGAIN): LEDGER_CHANGES,
    (Target.LEDGERS, Kind.STALL): (),
    **{(target, kind): () for target in Target for kind in STRIKES},
}
"""What each target can suffer, and the verbs it happens to; () for all."""


@attrs.frozen
class Nth:
    """The ``count``-th matching call from now on, once."""

    count: int = 1


@attrs.frozen
class Window:
    """Each matching call of the next ``seconds``, with this chance."""

    seconds: float
    chance: float


@attrs.frozen
class Fault:
    target: Target
    kind: Kind
    trigger: Nth | Window = Nth()
    verbs: tuple[str, ...] = ()
    """Only these; () for all that the kind can happen to."""
    process: int | None = None
    """Only this process; None for any."""
    part: str = ""
    """Only calls about a name that contains this."""
    start: str = ""
    """Only calls about a name that begins with this."""
    keep: int = 0
    seconds: float = math.inf
    bit: int = 0
    then: Callable[[int], None] | None = None
    """Called when it is met, with the number of the process."""


def any_fault(target: Target, trigger: Nth | Window, seconds: float, random: Random) -> Fault:
    """One that ``target`` can suffer, whatever it is."""
    kinds = [kind for known, kind in KINDS if known is target and kind not in STRIKES]
    return Fault(
        target,
        random.choice(kinds),
        trigger,
        # A disk tears a write between sectors, never inside one; an object store anywhere.
        keep=random.choice((0, 512, 1024) if target is Target.FILES else (0, 1, 100, 700)),
        seconds=random.choice((0.01, 0.5, seconds)),
        bit=random.randrange(8 * 64),
    )


@attrs.define(eq=False)
class _Waiting:
    """A fault that waits for its call."""

    fault: Fault
    verbs: tuple[str, ...]
    left: int
    until: float

    def strikes(self, target: Target, process: int, verb: str, name: str, random: Random) -> bool:
        fault = self.fault
        if (
            fault.target is not target
            or (self.verbs and verb not in self.verbs)
            or fault.process not in (None, process)
        ):
            return False
        if fault.part not in name or not name.startswith(fault.start):
            return False
        if isinstance(fault.trigger, Window):
            return random.random() < fault.trigger.chance
        self.left -= 1
        return self.left == 0


class Faults:
    """``strike`` is called for KILL, FREEZE and POWER, with the number of the process."""

    def __init__(self, trace: Trace, random: Random, strike: Callable[[Kind, int], None]) -> None:
        self.on_chunk_call: Callable[[int, str, str], None] = lambda process, verb, name: None
        """Called with every call to a chunk storage, before anything happens to it: the process, the verb,
        the chunk."""
        self.never_flipped: frozenset[str] = frozenset()
        """Names of chunks that are always read as they are."""
        self.met: dict[str, int] = {}
        """How often each kind was met, as ``files before``."""
        self.late_until = 0.0
        """When the last of the calls that are late by a number of seconds goes on: healing does not hurry
        it."""
        self._trace = trace
        self._random = random
        self._strike = strike
        self._waiting: list[_Waiting] = []
        self._stalls: list[anyio.Event] = []

    def add(self, fault: Fault) -> None:
        known = KINDS.get((fault.target, fault.kind))
        if known is None:
            raise ValueError(f"{fault.target} cannot suffer {fault.kind!r}; see KINDS")
        trigger = fault.trigger
        count, until = (
            (0, trio.current_time() + trigger.seconds)
            if isinstance(trigger, Window)
            else (trigger.count, math.inf)
        )
        self._waiting.append(_Waiting(fault, fault.verbs or known, count, until))

    def clear(self) -> None:
        """No fault is left, and the calls that hang because of one fail."""
        self._waiting.clear()
        stalls, self._stalls = self._stalls, []
        for event in stalls:
            event.set()

    def next(self, target: Target, process: int, verb: str, name: str) -> Fault | None:
        """What this call suffers. A strike is carried out here."""
        if not self._waiting:
            return None

        now = trio.current_time()
        self._waiting = [waiting for waiting in self._waiting if waiting.until > now]
        waiting_for = [
            waiting
            for waiting in self._waiting
            if waiting.fault.kind is not Kind.FLIP or name not in self.never_flipped
        ]
        found = [
            waiting for waiting in waiting_for if waiting.strikes(target, process, verb, name, self._random)
        ]
        self._waiting = [
            waiting for waiting in self._waiting if waiting.left or isinstance(waiting.fault.trigger, Window)
        ]
        if not found:
            return None

        fault = found[0].fault
        key = f"{target} {fault.kind}"
        self.met[key] = self.met.get(key, 0) + 1
        self._trace.note("fault", f"{key} of process {process} at {verb} {name}")
        if fault.kind in STRIKES:
            self._strike(fault.kind, process)
        if fault.kind in _TAKE_SECONDS and fault.seconds < math.inf:
            self.late_until = max(self.late_until, now + fault.seconds)
        if fault.then is not None:
            carry_out(partial(fault.then, process))
        return fault

    def stall(self, gate: Gate) -> anyio.Event:
        """What a stalled call of the process waits for: ``clear``, or its own end."""
        event = anyio.Event()
        self._stalls.append(event)
        gate.hold(event)
        return event


class FileFaults:
    """The ``on_call`` of one process's files."""

    def __init__(self, faults: Faults, process: int, gate: Gate) -> None:
        self._faults = faults
        self._process = process
        self._gate = gate

    def __call__(self, index: int, call: IoCall) -> file.Fault | None:
        path = path_of(call)
        fault = self._faults.next(Target.FILES, self._process, type(call).__name__, path)
        if fault is None:
            return None

        error = OSError(errno.EIO, "simulated", path)
        match fault.kind:
            case Kind.BEFORE:
                return file.Fail(error)
            case Kind.AFTER:
                return file.FailAfter(error)
            case Kind.PARTIAL:
                return file.Fail(error, fault.keep)
            case Kind.FULL:
                return file.Fail(OSError(errno.ENOSPC, "simulated", path))
            case Kind.STALL:
                return file.Pause(self._faults.stall(self._gate), fault.seconds, error)
            case _:  # Struck: the call goes on at the gate, if it ever does.
                until = anyio.Event()
                until.set()
                return file.Pause(until)


class LogServiceFaults:
    """The faults of one process's calls of the log service (``LogFaults``)."""

    def __init__(self, faults: Faults, process: int, gate: Gate) -> None:
        self._faults = faults
        self._process = process
        self._gate = gate
        self._lost_answer = False

    async def before(self, verb: str, name: str) -> None:
        fault = self._faults.next(Target.LOG, self._process, verb, name)
        self._lost_answer = fault is not None and fault.kind is Kind.AFTER
        if fault is None or fault.kind is Kind.AFTER:
            return
        if fault.kind is Kind.STALL:
            healed = self._faults.stall(self._gate)
            with trio.move_on_after(fault.seconds):
                await healed.wait()
            await self._gate.stay()
            if not healed.is_set():
                return
        if fault.kind not in STRIKES:
            raise Unavailable(f"simulated: the log service does not {verb} {name}")

    def after(self, verb: str, name: str) -> None:
        if self._lost_answer:
            raise Unavailable(f"simulated: the log service's answer to {verb} {name} is lost")


_CHUNK_FAULTS: Mapping[Kind, chunk.FaultKind] = {
    Kind.BEFORE: chunk.FaultKind.BEFORE,
    Kind.AFTER: chunk.FaultKind.AFTER,
    Kind.LOST: chunk.FaultKind.LOST,
    Kind.PARTIAL: chunk.FaultKind.PARTIAL,
    Kind.FULL: chunk.FaultKind.FULL,
    Kind.FLIP: chunk.FaultKind.FLIP,
    Kind.STALE_LIST: chunk.FaultKind.STALE_LIST,
}


class ChunkFaults:
    """The script of one process's chunk storage, and what its hanging calls wait for."""

    def __init__(self, faults: Faults, process: int, gate: Gate) -> None:
        self._faults = faults
        self._process = process
        self._gate = gate

    def script(self, call: chunk.Call) -> chunk.Fault | None:
        self._faults.on_chunk_call(self._process, call.verb, call.name)
        fault = self._faults.next(Target.CHUNKS, self._process, call.verb, call.name)
        if fault is None:
            return None
        if fault.kind in _CHUNK_FAULTS:
            return chunk.Fault(_CHUNK_FAULTS[fault.kind], keep=fault.keep, bit=fault.bit)
        if fault.kind is Kind.STALL and fault.seconds == math.inf:
            return chunk.Fault(chunk.FaultKind.HANG)
        # Struck, or late: the call goes on at the gate.
        return chunk.Fault(chunk.FaultKind.DELAY, seconds=fault.seconds if fault.kind is Kind.STALL else 0.0)

    async def hang(self) -> None:
        await self._faults.stall(self._gate).wait()
        await self._gate.stay()
