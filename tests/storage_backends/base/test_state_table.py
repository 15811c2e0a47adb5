"""The one form of all state machines (rule A7)."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from support.state_tables import check_table
from tierlog.storage_backends.base.state_table import StateTable


class Door(enum.Enum):
    SHUT = "shut"
    OPEN = "open"
    WALLED = "walled up"


class Act(enum.Enum):
    PUSH = "push"
    PULL = "pull"
    WALL = "wall up"


STEPS = {
    (Door.SHUT, Act.PUSH): Door.OPEN,
    (Door.SHUT, Act.WALL): Door.WALLED,
    (Door.OPEN, Act.PULL): Door.SHUT,
}
TABLE = StateTable(STEPS)


def test_a_complete_table_passes_the_check() -> None:
    check_table(TABLE, Door.SHUT, Act)


@pytest.mark.parametrize(
    "steps",
    [
        {key: after for key, after in STEPS.items() if after is not Door.WALLED},
        {key: after for key, after in STEPS.items() if after is not Door.SHUT},
    ],
    ids=["a state that nothing leads to", "an event that is never possible"],
)
def test_the_check_finds_what_is_missing(steps: Any) -> None:
    with pytest.raises(AssertionError):
        check_table(StateTable(steps), Door.SHUT, Act)


def test_a_table_cannot_be_changed() -> None:
    steps = dict(STEPS)
    table = StateTable(steps)
    steps[Door.OPEN, Act.WALL] = Door.WALLED
    assert table.find(Door.OPEN, Act.WALL) is None
    with pytest.raises(TypeError):
        table.steps[Door.OPEN, Act.WALL] = Door.WALLED  # type: ignore[index]


def test_reachable_states() -> None:
    assert TABLE.reachable(Door.OPEN) == set(Door)
    assert TABLE.reachable(Door.WALLED) == {Door.WALLED}


def test_it_is_rendered_by_state() -> None:
    assert TABLE.markdown().splitlines()[2:] == [
        "| shut | push → **open**; wall up → **walled up** |",
        "| open | pull → **shut** |",
    ]
