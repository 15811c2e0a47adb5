"""The garbage collector of a container over HTTP: its tasks, and orders to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.http_server import ServedStore, service

pytestmark = pytest.mark.anyio

GC = "/v1/containers/0/gc"
ORDER = f"{GC}-order"


async def test_the_tasks_of_a_container_are_shown_by_what_they_wait_for(tmp_path: Path) -> None:
    async with service(tmp_path, containers=1) as served:
        await served.http.post(ORDER, json={"action": "pause"})
        store = served.store
        await store.create_segment("s")
        await store.append("s", b"abc")
        await store.flush()
        await store.delete_segment("s")
        await store.flush()

        found = (await served.http.get(GC)).json()
        assert (found["queue"], found["failed_queue"]) == ("GC_queue_0", "GC_failed_queue_0")
        assert (found["queued"], found["failed"], found["paused"]) == (1, 0, True)
        [task] = found["tasks"]
        assert (task["kind"], task["state"], task["error"]) == ("delete chunk", "delay", "")
        assert 0 <= task["seconds"] <= 60
        assert found["failed_tasks"] == []


async def test_a_collector_is_paused_and_resumed(served: ServedStore) -> None:
    paused = await served.http.post(ORDER, json={"action": "pause"})
    assert paused.json() == {"queue": "GC_queue_0", "names": 0, "paused": True}
    assert (await served.http.get(GC)).json()["paused"]
    assert not (await served.http.post(ORDER, json={"action": "resume"})).json()["paused"]
    for action in ("retry", "purge"):
        assert (await served.http.post(ORDER, json={"action": action})).json()["names"] == 0


@pytest.mark.parametrize("body", [{"action": "delete"}, {}])
async def test_an_unknown_order_is_refused(served: ServedStore, body: dict[str, str]) -> None:
    answer = await served.http.post(ORDER, json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-argument")


@pytest.mark.parametrize("limit", ["0", "1001", "x"])
async def test_a_limit_out_of_range_is_refused(served: ServedStore, limit: str) -> None:
    assert (await served.http.get(f"{GC}?limit={limit}")).status_code == 400


async def test_a_container_that_does_not_exist_has_no_tasks(served: ServedStore) -> None:
    for answer in (
        await served.http.get("/v1/containers/9/gc"),
        await served.http.post("/v1/containers/9/gc-order", json={"action": "pause"}),
    ):
        assert answer.json()["code"] == "no-such-container"
