"""Runs the programs of a client in virtual time, without a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tierlog.actors.gateway.client.attempts import (
    ClientContext,
    Pause,
    Program,
    RefreshMap,
    Send,
    refresh_map,
)
from tierlog.actors.gateway.client.requests import Response, TransportFailure


class ProgramDriver(ABC):
    now: float
    context: ClientContext

    def drive(self, program: Program[Any]) -> Any:
        result = None
        try:
            while True:
                result = self._act(program.send(result))
        except StopIteration as end:
            return end.value

    def _act(self, effect: Send | Pause | RefreshMap) -> Response | TransportFailure | None:
        if isinstance(effect, Pause):
            self.now += effect.seconds
            return None

        if isinstance(effect, RefreshMap):
            self.drive(refresh_map(self.context, effect.seconds))
            return None

        return self._send(effect)

    @abstractmethod
    def _send(self, send: Send) -> Response | TransportFailure:
        """The answer to a request."""
