"""Requests to what is elsewhere: an object store, or a service of ledgers.

A request takes time on its way, takes effect in one step when it arrives, and its answer takes time too. What
is on its way arrives although its sender is frozen, has given up, or is dead. A request can be refused, lost,
late, or carried out twice; and its answer can be lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from heapq import heappop, heappush
from typing import Any

import attrs
import trio

from tierlog.storage_backends.base.errors import OutcomeUnknown, TierlogError, Unavailable

from .faults import STRIKES, Fault, Faults, Kind, Target
from .gates import Gate


@attrs.define(eq=False)
class _Request:
    effect: Callable[[], Any]
    arrived: bool = False
    answer: Any = None
    error: TierlogError | None = None

    def arrive(self) -> None:
        self.arrived = True
        try:
            self.answer = self.effect()
        except TierlogError as error:
            self.error = error


class Transit:
    """The requests of all processes that are on their way."""

    def __init__(self) -> None:
        self._coming: list[tuple[float, int, _Request]] = []
        self._sent = 0

    def send(self, seconds: float, effect: Callable[[], Any]) -> _Request:
        """A request that arrives so many seconds later."""
        self._sent += 1
        request = _Request(effect)
        heappush(self._coming, (trio.current_time() + seconds, self._sent, request))
        return request

    def settle(self) -> None:
        """What has arrived by now has its effect, in the order of arrival: nobody could look earlier."""
        while self._coming and self._coming[0][0] <= trio.current_time():
            heappop(self._coming)[2].arrive()


class RemoteCalls:
    """The calls of one process, behind its gate, with faults. ``changes``: the verbs of those whose outcome
    is unknown if they have no answer."""

    def __init__(
        self,
        transit: Transit,
        process: int,
        gate: Gate,
        faults: Faults,
        target: Target,
        changes: Collection[str],
    ) -> None:
        self._transit = transit
        self._process = process
        self._gate = gate
        self._faults = faults
        self._target = target
        self._changes = changes

    async def ask(self, verb: str, name: str, what: str, effect: Callable[[], Any]) -> Any:
        """``name`` is what faults know it by; ``what`` is for the trace."""
        gate = self._gate
        left = await gate.enter(gate.latency.log)
        fault = self._faults.next(self._target, self._process, verb, name)
        await gate.stay()
        gate.trace.note(gate.name, what)
        answer = await self._suffer(fault, verb, name, left / 2, effect)
        await gate.answer(left / 2)
        return answer

    async def _suffer(
        self, fault: Fault | None, verb: str, name: str, seconds: float, effect: Callable[[], Any]
    ) -> Any:
        """The request's effect and answer, with the fault."""
        if fault is None or fault.kind in STRIKES:
            return await self._sent(seconds, effect)
        what = f"simulated: {verb} {name}".rstrip()
        lost = self._lost(verb, f"{what} has no answer")
        match fault.kind:
            case Kind.BEFORE:
                raise Unavailable(f"{what} is refused for now")
            case Kind.LOST:
                raise lost
            case Kind.AFTER:
                await self._sent(seconds, effect)
                raise lost
            case Kind.LATE:
                self._transit.send(fault.seconds, effect)
                raise lost
            case Kind.REPEATED:
                await self._sent(seconds, effect)
                return await self._sent(0.0, effect)
            case Kind.AGAIN:
                self._transit.send(seconds + fault.seconds, effect)
                return await self._sent(seconds, effect)
            case _:
                return await self._stall(fault, lost, effect)

    async def _stall(self, fault: Fault, lost: TierlogError, effect: Callable[[], Any]) -> Any:
        """It is slow on its way, or does not arrive."""
        if fault.seconds < math.inf:
            return await self._sent(fault.seconds, effect)

        await self._faults.stall(self._gate).wait()
        await self._gate.stay()
        raise lost

    async def _sent(self, seconds: float, effect: Callable[[], Any]) -> Any:
        request = self._transit.send(seconds, effect)
        if seconds:
            await trio.sleep(seconds)
        self._transit.settle()
        assert request.arrived
        if request.error is not None:
            raise request.error
        return request.answer

    def _lost(self, verb: str, why: str) -> TierlogError:
        """The error of a request without an answer."""
        return OutcomeUnknown(why) if verb in self._changes else Unavailable(why)
