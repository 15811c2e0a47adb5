"""A container whose hosts crash is quarantined, and the others go on (rule V8): with real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import httpx
import pytest

import tierlog
from support.live_service import SyncOwnService, name_in, wait_until
from tierlog.actors.gateway.wire.paths import Verb, segment_path

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")

PROGRAM = (sys.executable, str(Path(__file__).parents[2] / "support" / "crashing_service.py"))
BAD, CONTAINERS = 1, 4


def assignment(service: SyncOwnService, index: int) -> dict[str, object]:
    found: dict[str, object] = next(
        each for each in service.status()["containers"] if each["container"] == index
    )
    return found


def is_quarantined(service: SyncOwnService) -> bool:
    others = set(range(CONTAINERS)) - {BAD}
    return assignment(service, BAD)["phase"] == "quarantined" and service.assignments().keys() == others


def unasked_exits(service: SyncOwnService) -> int:
    return sum(int(host["exits"]) for host in service.status()["hosts"])


def refusals(service: SyncOwnService, name: str) -> list[str]:
    hosts = [each for each in service.status()["hosts"] if each["phase"] == "serving"]
    assert hosts
    return [httpx.get(host["url"] + segment_path(name, Verb.INFO)).json()["detail"] for host in hosts]


def not_served(service: SyncOwnService) -> tuple[int, list[int]]:
    answer = service.client.get("/ready")
    return answer.status_code, answer.json()["containers_not_served"]


def test_v8_a_container_that_crashes_three_hosts_is_quarantined(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = tmp_path / "fault"
    monkeypatch.setenv("CRASH_CONTAINER", str(BAD))
    monkeypatch.setenv("CRASH_WHILE", str(fault))
    names = [name_in(index, CONTAINERS) for index in range(CONTAINERS)]

    async def begin() -> None:
        async with tierlog.open_store(folder, containers=CONTAINERS) as store:
            for name in names:
                await store.create_segment(name)
                await store.append(name, b"before ")

    anyio.run(begin)
    fault.touch()
    with SyncOwnService(folder, program=PROGRAM) as service:
        wait_until(lambda: is_quarantined(service), "the container is quarantined, the others are served")
        assert unasked_exits(service) == 3, "one host after the other, and none more"
        assert "its host exited 3 times in a row" in str(assignment(service, BAD)["reason"])
        assert any(
            line.startswith(f"error: container {BAD} is not served but quarantined: ")
            for line in service.errors
        )
        for index, name in enumerate(names):
            if index != BAD:
                service.append(name, b"after")
                assert service.read(name) == b"before after"
        wait_until(lambda: not_served(service) == (503, [BAD]), "the supervisor knows what the hosts serve")

        wait_until(
            lambda: all(
                "is quarantined: its host exited 3 times in a row" in why
                for why in refusals(service, names[BAD])
            ),
            "the hosts say why they do not serve the container",
        )

        fault.unlink()
        assert service.post(f"/v1/containers/{BAD}/open").is_success
        service.settle()
        service.append(names[BAD], b"after")
        assert service.read(names[BAD]) == b"before after", "nothing acked was lost on the way"
        assert unasked_exits(service) == 3, "and no host had to die for it any more"
        assert service.stop() == 0
