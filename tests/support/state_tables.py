"""What every state table is checked for."""

from __future__ import annotations

import enum
import itertools
from typing import TypeVar

import pytest

from tierlog.storage_backends.base.state_table import IllegalTransition, StateTable

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


def check_table(table: StateTable[S, E], start: S, events: type[E]) -> None:
    """Each state can be reached from ``start``, each event leads somewhere, and every other step is
    refused."""
    assert table.reachable(start) == set(type(start))
    assert {event for _, event in table.steps} == set(events)
    for state, event in itertools.product(type(start), events):
        after = table.steps.get((state, event))
        assert table.find(state, event) is after
        if after is None:
            with pytest.raises(IllegalTransition, match=f"{state.value}: '{event.value}' is not possible"):
                table.next(state, event)
        else:
            assert table.next(state, event) is after
