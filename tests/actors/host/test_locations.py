"""Where a host sends what it does not serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tierlog.actors.host.main import ContainerLocations
from tierlog.actors.supervisor.control.messages import Owners

HERE, THERE = "http://here:1", "http://there:1"


def test_h22_what_a_host_does_not_serve_any_more_leads_nowhere_until_another_one_has_it() -> None:
    epochs = {0: 7}
    store = SimpleNamespace(append_bytes_max=1)
    runtime: Any = SimpleNamespace(containers=2, epochs=lambda: epochs, store=store)
    locations = ContainerLocations(runtime, HERE)
    locations.update(Owners({0: HERE, 1: THERE}))
    assert [each.url for each in locations.map().containers] == [HERE, THERE]
    epochs.clear()
    assert [locations.url_of(index) for index in range(2)] == [None, THERE]
    assert [each.url for each in locations.map().containers] == [None, THERE]
