"""docs/protocols/states.md shows the state tables of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tierlog.actors.chunk_io import actor, breaker
from tierlog.actors.flush.flush_cycle import CYCLE_PHASES
from tierlog.actors.supervisor.assignment import ASSIGNMENT_PHASES
from tierlog.actors.supervisor.hosts import HOST_PHASES
from tierlog.journal.log import lifecycle
from tierlog.storage_backends.base.state_table import StateTable

PAGE = Path(__file__).parents[1] / "docs" / "protocols" / "states.md"
TABLES: dict[str, StateTable[Any, Any]] = {
    "A log object": lifecycle.STATES,
    "The storage actor": actor.STATES,
    "The breaker": breaker.STATES,
    "A flush cycle": CYCLE_PHASES,
    "A host": HOST_PHASES,
    "An assignment": ASSIGNMENT_PHASES,
}


@pytest.mark.parametrize("title", TABLES)
def test_the_page_shows_the_table(title: str) -> None:
    section = PAGE.read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    assert TABLES[title].markdown().strip() in section
