"""One fault of a service: its n-th call fails, in a way."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.lowlevel
import attrs

from tierlog.storage_backends.base.errors import OutcomeUnknown, TierlogError, Unavailable

T = TypeVar("T")


class FaultKind(enum.Enum):
    REFUSED = "refused"
    """For now, as with 409 and 503."""
    LOST = "lost"
    """No verdict and no effect."""
    UNANSWERED = "unanswered"
    """No verdict, although it took effect."""
    LATE = "late"
    """No verdict, and it takes effect after ``delay`` more calls."""
    REPEATED = "repeated"
    """It takes effect, and again; the second answer arrives."""


KINDS_AND_DELAYS = [
    *((kind, 0) for kind in FaultKind if kind is not FaultKind.LATE),
    *((FaultKind.LATE, delay) for delay in (1, 2, 4, 8, 20, 1_000)),
]
"""Each kind of fault, and late ones of several delays."""


@attrs.frozen
class CallFault:
    at: int
    kind: FaultKind
    delay: int = 0


@attrs.define(eq=False)
class Hold:
    """Calls that wait before they take effect, and are listed as ``NAME waits`` meanwhile."""

    name: str
    """Empty: all calls."""
    skip: int
    most: int
    arrived: anyio.Event = attrs.field(factory=anyio.Event)
    go_on: anyio.Event = attrs.field(factory=anyio.Event)

    def takes(self, name: str) -> bool:
        if self.name not in ("", name) or self.go_on.is_set():
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.most -= 1
        return self.most >= 0


class CallFaults:
    """Counts the calls in ``asked``, by name. ``reads``: the names of those that change nothing."""

    def __init__(self, fault: CallFault | None, reads: Collection[str]) -> None:
        self.asked: list[str] = []
        self.fault = fault
        self._reads = reads
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._hold: Hold | None = None

    def fail_next(self, kind: FaultKind) -> None:
        self.fault = CallFault(len(self.asked) + 1, kind)

    def hold(self, name: str, *, skip: int = 0, most: int = 1_000) -> Hold:
        """The next calls of this name wait, but for the first ``skip``, and ``most`` of them."""
        self._hold = hold = Hold(name, skip, most)
        return hold

    def settle(self) -> None:
        """What is late takes effect now."""
        for _, effect in self._late:
            _carry_out(effect)
        self._late.clear()

    async def ask(self, name: str, effect: Callable[[], T]) -> T:
        await anyio.lowlevel.checkpoint()
        if self._hold is not None and self._hold.takes(name):
            waiting = f"{name} waits"
            self.asked.append(waiting)
            self._hold.arrived.set()
            await self._hold.go_on.wait()
            self.asked.remove(waiting)
        self.asked.append(name)
        number = len(self.asked)
        for due, late in [each for each in self._late if each[0] <= number]:
            self._late.remove((due, late))
            _carry_out(late)
        if self.fault is None or self.fault.at != number:
            return effect()
        return self._fail(name, effect, self.fault)

    def _fail(self, name: str, effect: Callable[[], T], fault: CallFault) -> T:
        if fault.kind is FaultKind.REFUSED or name in self._reads:
            raise Unavailable("refused for now")
        if fault.kind is FaultKind.LATE:
            self._late.append((fault.at + fault.delay, effect))
        elif fault.kind is not FaultKind.LOST:
            effect()
        if fault.kind is FaultKind.REPEATED:
            return effect()
        raise OutcomeUnknown("no verdict")


def _carry_out(effect: Callable[[], object]) -> None:
    """Nobody waits for its answer."""
    with suppress(TierlogError):
        effect()
