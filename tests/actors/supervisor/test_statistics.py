"""What the supervisor reads out of heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

from tierlog.actors.chunk_io.health import StorageHealth, StorageHealthStatistics
from tierlog.actors.supervisor.statistics import storage_health

CAUSE = "3 calls in a row failed"


@pytest.mark.parametrize("state", StorageHealth)
def test_the_health_that_a_host_sends_is_read_back(state: StorageHealth) -> None:
    sent = StorageHealthStatistics(state, CAUSE).document()

    assert storage_health(sent) == {"state": state.value, "cause": CAUSE}


@pytest.mark.parametrize(
    ("sent", "state"),
    [
        ({"trouble": "unreachable", "cause": CAUSE}, "unreachable"),
        ({"trouble": "full", "cause": CAUSE}, "full"),
        ({"trouble": "none", "cause": CAUSE}, "ok"),
    ],
)
def test_v4_a_host_of_an_earlier_build_is_understood(sent: dict[str, str], state: str) -> None:
    assert storage_health(sent) == {"state": state, "cause": CAUSE}


@pytest.mark.parametrize("sent", [None, {}, "full", {"cause": ""}])
def test_a_host_that_sends_nothing_counts_as_healthy(sent: Any) -> None:
    assert storage_health(sent) == {"state": "ok", "cause": ""}
