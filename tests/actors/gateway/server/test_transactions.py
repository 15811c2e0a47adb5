"""Transactions over raw HTTP: the documents, the statuses, the bounds (rule H17)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from support.http_server import ServedStore, Wrapped, service, serving
from tierlog import open_store
from tierlog.actors.gateway.server.app import ServerLimits
from tierlog.actors.gateway.wire.batch import BATCH_TYPE, BatchItem, decode_outcomes, encode_batch
from tierlog.actors.gateway.wire.bodies import JSON_TYPE
from tierlog.storage_backends.base.errors import NotOwner, TransactionEnded

pytestmark = pytest.mark.anyio

RAW = {"Content-Type": "application/octet-stream"}
TOKEN = {"writer": "query", "epoch": 3}
STAGED = "app/events#txn.t-1.p0"
VERBS: dict[str, dict[str, Any]] = {
    "begin-transaction": {"transaction_id": "t-1"},
    "stage-segment": {"transaction_id": "t-1", "part": "p0"},
    "commit-transaction": {"transaction_id": "t-1", "parts": [{"name": STAGED, "length": 5}]},
    "abort-transaction": {"transaction_id": "t-1"},
}


async def ask(served: ServedStore, verb: str, **body: Any) -> httpx.Response:
    return await served.http.post(
        f"/v1/segments/app/events/{verb}", content=json.dumps(body), headers={"Content-Type": JSON_TYPE}
    )


async def stage(served: ServedStore, data: bytes = b"bytes") -> None:
    """The transaction ``t-1`` with one part."""
    await served.store.create_segment("app/events")
    await ask(served, "begin-transaction", transaction_id="t-1", token=TOKEN, lease=60)
    await ask(served, "stage-segment", transaction_id="t-1", part="p0")
    await served.store.append(STAGED, data, expected_offset=0)


async def test_a_transactions_life(served: ServedStore) -> None:
    await served.store.create_segment("app/events")

    begun = await ask(served, "begin-transaction", transaction_id="t-1", token=TOKEN, lease=60)
    staged = await ask(served, "stage-segment", transaction_id="t-1", part="p0")
    appended = await served.http.post(
        "/v1/segments/app/events%23txn.t-1.p0/append", content=b"bytes", headers=RAW
    )
    seen = await served.http.get("/v1/segments/app/events/transaction-info?transaction_id=t-1")
    committed = await ask(served, "commit-transaction", **VERBS["commit-transaction"], token=TOKEN)
    aborted = await ask(served, "abort-transaction", transaction_id="t-1", reason="too late")

    assert [each.status_code for each in (begun, staged, appended, seen, committed, aborted)] == [200] * 6
    assert begun.json() == {
        "transaction_id": "t-1",
        "target": "app/events",
        "state": "open",
        "token": TOKEN,
        "lease": 60.0,
        "expires_in": pytest.approx(60.0, abs=5.0),
        "reason": "",
        "offset": None,
        "length": 0,
        "staged": [],
    }
    assert staged.json() == {"segment": STAGED}
    assert (seen.json()["length"], seen.json()["staged"]) == (5, [{"name": STAGED, "length": 5}])
    assert committed.json() == {"applied": True, "offset": 0, "length": 5}
    assert (aborted.json()["state"], aborted.json()["reason"], aborted.json()["offset"]) == (
        "committed",
        "",
        0,
    )
    assert (await served.http.get("/v1/segments/app/events/bytes")).content == b"bytes"
    assert (await served.http.get("/v1/segments")).json() == {"segments": ["app/events"]}


async def test_h7_an_append_to_an_ended_transaction_fails_alone_in_its_batch(
    served: ServedStore,
) -> None:
    await stage(served)
    await ask(served, "abort-transaction", transaction_id="t-1")

    body = b"".join(encode_batch([BatchItem(STAGED, b"x"), BatchItem("app/events", b"fine")]))
    response = await served.http.post("/v1/batch", content=body, headers={"Content-Type": BATCH_TYPE})
    zombie, other = decode_outcomes(response.content, 2)

    assert isinstance(zombie, TransactionEnded)
    assert (zombie.state, other) == ("aborted", 0)


@pytest.mark.parametrize(
    "verb, body, status, code",
    [
        ("begin-transaction", {}, 400, "invalid-argument"),
        ("begin-transaction", {"transaction_id": "t", "lease": 0}, 400, "invalid-argument"),
        ("begin-transaction", {"transaction_id": "t", "token": None}, 400, "invalid-argument"),
        ("begin-transaction", {"transaction_id": "t", "lifetime": 60}, 400, "invalid-argument"),
        (
            "begin-transaction",
            {"transaction_id": "t-1", "token": {"writer": "query", "epoch": 4}},
            400,
            "invalid-argument",
        ),
        ("stage-segment", {"transaction_id": "t-1", "part": "p.0"}, 400, "invalid-argument"),
        ("stage-segment", {"transaction_id": "none", "part": "p0"}, 404, "transaction-not-found"),
        ("commit-transaction", {"transaction_id": "none", "parts": []}, 404, "transaction-not-found"),
        (
            "commit-transaction",
            {"transaction_id": "t-1", "parts": [{"name": STAGED, "length": 4}]},
            412,
            "bad-offset",
        ),
        (
            "commit-transaction",
            {"transaction_id": "t-1", "parts": [{"name": STAGED + "1", "length": 4}]},
            404,
            "segment-not-found",
        ),
        (
            "commit-transaction",
            {"transaction_id": "t-1", "parts": [{"name": "app/events", "length": 0}]},
            400,
            "invalid-argument",
        ),
        ("commit-transaction", {"transaction_id": "t-1", "parts": [STAGED]}, 400, "invalid-argument"),
        ("abort-transaction", {"transaction_id": "t-1", "reason": "x" * 1_001}, 400, "invalid-argument"),
        ("abort-transaction", {"transaction_id": "t-1", "reason": "\ud800"}, 400, "invalid-argument"),
    ],
)
async def test_h2_refusals_leave_the_transaction_as_it_is(
    served: ServedStore, verb: str, body: dict[str, Any], status: int, code: str
) -> None:
    await stage(served)
    before = attrs.evolve(await served.store.transaction_info("app/events", "t-1"), expires_in=0)

    response = await ask(served, verb, **body)

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert attrs.evolve(await served.store.transaction_info("app/events", "t-1"), expires_in=0) == before


@pytest.mark.parametrize(
    "path, status, code",
    [
        ("/v1/segments/app/events/transaction-info", 400, "invalid-argument"),
        ("/v1/segments/app/events/transaction-info?transaction_id=%20", 400, "invalid-argument"),
        ("/v1/segments/app/events/transaction-info?id=t-1", 400, "invalid-argument"),
        ("/v1/segments/app/events/transaction-info?transaction_id=none", 404, "transaction-not-found"),
        ("/v1/transactions?target=a", 400, "invalid-argument"),
        ("/v1/segments/app/events/begin-transaction", 405, "method-not-allowed"),
    ],
)
async def test_h2_refusals_of_queries(served: ServedStore, path: str, status: int, code: str) -> None:
    await stage(served)

    response = await served.http.get(path)

    assert (response.status_code, response.json()["code"]) == (status, code)


async def test_h17_a_commit_names_more_parts_than_another_body_has_room_for(served: ServedStore) -> None:
    await stage(served)
    body = {
        "transaction_id": "t-1",
        "parts": [{"name": f"{STAGED}{number}", "length": 0} for number in range(30_000)],
    }

    commit = await ask(served, "commit-transaction", **body)

    assert len(commit.request.content) > served.gateway.limits.json_bytes
    assert (commit.status_code, commit.json()["code"]) == (
        400,
        "invalid-argument",
    )  # too many parts, but a body that was read


async def test_h9_a_commit_has_a_bound_too(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(commit_bytes=100)) as served:
        refused = await ask(served, "commit-transaction", **VERBS["commit-transaction"], token=TOKEN)

    assert (refused.status_code, refused.json()["code"]) == (413, "too-large")


@pytest.mark.parametrize("owner", ["http://127.0.0.1:1", None])
async def test_h13_another_hosts_transaction_is_answered_with_its_owner(
    tmp_path: Path, owner: str | None
) -> None:
    async def elsewhere(*args: object, **more: object) -> None:
        raise NotOwner("container 0 is not served here")

    async with open_store(tmp_path / "data", containers=1) as store:
        names = (
            "begin_transaction",
            "stage_segment",
            "commit_transaction",
            "abort_transaction",
            "transaction_info",
        )
        async with serving(
            Wrapped(store, **dict.fromkeys(names, elsewhere)), owner_of=lambda container: owner
        ) as served:
            answers = [await ask(served, verb, **body) for verb, body in VERBS.items()]
            answers.append(
                await served.http.get("/v1/segments/app/events/transaction-info?transaction_id=t-1")
            )

    assert [(each.status_code, each.headers.get("tierlog-owner")) for each in answers] == [(421, owner)] * 5


async def test_requests_about_transactions_are_counted_by_verb(served: ServedStore) -> None:
    await stage(served)
    await served.http.get("/v1/transactions")

    scrape = (await served.http.get("/metrics")).text

    assert (
        'tierlog_http_requests_total{method="POST",operation="begin-transaction",status="200"} 1.0' in scrape
    )
    assert 'tierlog_http_requests_total{method="POST",operation="stage-segment",status="200"} 1.0' in scrape
    assert (
        'tierlog_http_requests_total{method="GET",operation="list-transactions",status="200"} 1.0' in scrape
    )
