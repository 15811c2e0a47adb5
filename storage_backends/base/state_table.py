"""State machines as tables (rule A7): every legal step is one row, so that a test can walk all of them and
the documents can show them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

import attrs

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


class IllegalTransition(RuntimeError):
    """An event that the table does not have for the state: a bug in the caller."""


def _frozen(steps: Mapping[tuple[S, E], S]) -> Mapping[tuple[S, E], S]:
    return MappingProxyType(dict(steps))


@attrs.frozen(eq=False, repr=False)
class StateTable(Generic[S, E]):
    """``steps`` maps (state, event) to the next state; what it does not name is illegal."""

    steps: Mapping[tuple[S, E], S] = attrs.field(converter=_frozen)

    def next(self, state: S, event: E) -> S:
        """The state that follows. Raises ``IllegalTransition`` if the event is illegal in ``state``."""
        after = self.steps.get((state, event))
        if after is None:
            raise IllegalTransition(f"{type(state).__name__} {state.value}: {event.value!r} is not possible")
        return after

    def find(self, state: S, event: E) -> S | None:
        """Like ``next``, but None if the event is illegal: for machines that ignore late events."""
        return self.steps.get((state, event))

    def reachable(self, start: S) -> frozenset[S]:
        """``start`` and every state that can follow it, directly or not."""
        seen, frontier = {start}, [start]
        while frontier:
            state = frontier.pop()
            for (before, _), after in self.steps.items():
                if before is state and after not in seen:
                    seen.add(after)
                    frontier.append(after)
        return frozenset(seen)

    def markdown(self) -> str:
        """The table for the documents: one row for each state, with its events and what they lead to."""
        rows: dict[S, dict[S, list[str]]] = {}
        for (state, event), after in self.steps.items():
            rows.setdefault(state, {}).setdefault(after, []).append(event.value)
        lines = ["| state | event → next state |", "|---|---|"]
        for state, targets in rows.items():
            steps = "; ".join(f"{', '.join(events)} → **{after.value}**" for after, events in targets.items())
            lines.append(f"| {state.value} | {steps} |")
        return "\n".join(lines) + "\n"
