"""Where a host sends what it does not serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tierlog.actors.host.main import ContainerLocations
from tierlog.actors.supervisor.control.messages import Owners

HERE, THERE = "http://here:1", "http://there:1"


def test_v3_a_host_knows_why_a_container_stays_closed_until_that_has_an_owner() -> None:
    store = SimpleNamespace(append_bytes_max=1)
    runtime: Any = SimpleNamespace(containers=3, epochs=dict, store=store, store_id="")
    locations = ContainerLocations(runtime, HERE)
    locations.update(Owners({0: THERE}))
    locations.update(Owners({}, True, {1: "it is damaged", 2: "it was fenced"}))
    assert [locations.absence_of(index) for index in range(3)] == ["", "it is damaged", "it was fenced"]
    locations.update(Owners({1: "", 2: THERE}, True))
    assert [locations.absence_of(index) for index in range(3)] == ["", "", ""]
    locations.update(Owners({}, True, {1: "it is damaged"}))
    locations.update(Owners({}))
    assert locations.absence_of(1) == "", "of another supervisor"


def test_h22_what_a_host_does_not_serve_any_more_leads_nowhere_until_another_one_has_it() -> None:
    epochs = {0: 7}
    store = SimpleNamespace(append_bytes_max=1)
    runtime: Any = SimpleNamespace(containers=2, epochs=lambda: epochs, store=store, store_id="")
    locations = ContainerLocations(runtime, HERE)
    locations.update(Owners({0: HERE, 1: THERE}))
    assert [each.url for each in locations.map().containers] == [HERE, THERE]
    epochs.clear()
    assert [locations.url_of(index) for index in range(2)] == [None, THERE]
    assert [each.url for each in locations.map().containers] == [None, THERE]
