"""The container as its own parts see it: the storage writer's source, and what the collector must not delete.

Owns: two narrow views. Does not own: the state behind them, nor what the parts do with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...journal.operations.forget_segment import ForgetSegment
from ...journal.operations.vocabulary import Operation
from ..writer.aggregation import FlushableSegment
from .state import ContainerState

if TYPE_CHECKING:
    from .container import Container


class ReferencedChunks:
    """The chunk names that metadata knows."""

    def __init__(self, state: ContainerState) -> None:
        self._metadata = state.metadata

    def __contains__(self, name: object) -> bool:
        return f"c:{name}" in self._metadata


class ContainerSource:
    """The container as the storage writer sees it (``FlushSource``)."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = container.state

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def sequence(self) -> int:
        return self._state.sequence

    @property
    def caused_sequence(self) -> int:
        return self._state.caused_sequence

    def all_segments(self) -> Iterable[FlushableSegment]:
        return self._state.segments.by_id.values()

    def segment_of(self, sid: int) -> FlushableSegment | None:
        return self._state.segments.get(sid)

    async def settle(self) -> None:
        await self._container.settle()

    async def log(self, op: Operation) -> object:
        return await self._container.log_operation(op)

    async def forget(self, sid: int) -> object:
        return await self._container.log_operation(ForgetSegment(sid))
