"""What the supervisor reads out of heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

from support.fake_hosts import FakeHostsSupervisor
from tierlog.actors.chunk_io.health import StorageHealth, StorageHealthStatistics
from tierlog.actors.gateway.wire.bodies import ServiceStatus, decode_answer, encode_json
from tierlog.actors.supervisor.control.messages import COUNT_MAX
from tierlog.actors.supervisor.statistics import requests_of, storage_health
from tierlog.storage_backends.base.ids import EPOCH_MAX

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


@pytest.mark.anyio
async def test_the_requests_that_hosts_send_are_summed() -> None:
    supervisor = FakeHostsSupervisor(2, 2)
    assert supervisor.view().document()["requests"] is None, "there is no bucket"

    supervisor.facts["host-0"].requests = requests_of({"puts": 3, "gets": 5, "lists": 1, "deletes": 2})
    supervisor.facts["host-1"].requests = requests_of({"puts": 4, "one of a later build": 1})
    requests = supervisor.view().document()["requests"]
    assert requests == {"puts": 7, "gets": 5, "lists": 1, "deletes": 2}

    for host in ("host-0", "host-1"):
        supervisor.facts[host].requests = requests_of({"puts": COUNT_MAX})
    answer = encode_json({"folder": "", "pid": 1, **supervisor.view().document()})
    assert decode_answer(answer, ServiceStatus).requests == {
        "puts": COUNT_MAX,
        "gets": 0,
        "lists": 0,
        "deletes": 0,
    }, "who asks for the status decodes 64 bits"


@pytest.mark.anyio
async def test_a_container_shows_the_health_of_its_log_and_the_epoch_of_now() -> None:
    supervisor = FakeHostsSupervisor(2, 1)
    before = supervisor.view().document()["containers"]
    assert [(each["epoch"], each["log"]["state"]) for each in before] == [(1, "ok"), (1, "ok")]
    # Its owner failed, and its host opened it again.
    news = {"epoch": 4, "log": {"state": "unreachable", "cause": "no success for 9 s"}}
    supervisor.facts["host-0"].learn({"containers": {"0": news, "1": {"epoch": COUNT_MAX}}})
    document = {"folder": "", "pid": 1, **supervisor.view().document()}
    first, second = decode_answer(encode_json(document), ServiceStatus).containers
    assert (first.epoch, first.log.state, first.log.cause) == (4, "unreachable", "no success for 9 s")
    assert (second.epoch, second.log.state) == (EPOCH_MAX, "ok")


@pytest.mark.parametrize("sent", [None, {}, "full", {"cause": ""}])
def test_a_host_that_sends_nothing_counts_as_healthy(sent: Any) -> None:
    assert storage_health(sent) == {"state": "ok", "cause": ""}
