"""Every verb through the server, and every refusal of the store as a problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from msgspec.structs import replace

from support.http_server import ServedStore, Wrapped, service, serving
from tierlog import open_store
from tierlog.actors.gateway.wire import bodies
from tierlog.actors.gateway.wire.batch import BATCH_TYPE, BatchItem, decode_outcomes, encode_batch
from tierlog.actors.gateway.wire.bodies import ContainerAssignment, ContainerMap
from tierlog.actors.gateway.wire.errors import OwnedElsewhere, from_problem
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.base.errors import (
    BadOffset,
    NotOwner,
    OutOfOrder,
    SegmentNotFound,
    SegmentSealed,
    StorageFull,
    Throttled,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.base.segments import SegmentInfo

pytestmark = pytest.mark.anyio

RAW = {"Content-Type": "application/octet-stream"}
CONDITIONAL = {"name": "x", "value": 1, "kind": "replace-if-equals", "expected": 1}


def problem(response: httpx.Response) -> TierlogError:
    return from_problem(response.status_code, response.headers, response.content, maybe_applied=False)


async def post(served: ServedStore, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    return await served.http.post(path, json=body) if body is not None else await served.http.post(path)


async def append(served: ServedStore, name: str, data: bytes, **headers: str) -> httpx.Response:
    return await served.http.post(f"/v1/segments/{name}/append", content=data, headers={**RAW, **headers})


async def send_batch(served: ServedStore, items: list[BatchItem]) -> list[Any]:
    response = await served.http.post(
        "/v1/batch", content=b"".join(encode_batch(items)), headers={"Content-Type": BATCH_TYPE}
    )
    assert response.status_code == 200, response.text
    return decode_outcomes(response.content, len(items))


async def test_attributes_are_listed_in_pages(served: ServedStore) -> None:
    await post(served, "/v1/segments/a/create")
    first = "00" * 15
    updates = [
        *({"name": f"n&{number}", "value": number} for number in range(3)),
        *({"id": f"{first}0{number}", "value": number} for number in range(3)),
    ]
    answer = (await post(served, "/v1/segments/a/attributes", {"updates": updates})).json()
    assert answer == {
        "attributes": {f"n&{number}": number for number in range(3)},
        "ids": {f"{first}0{number}": number for number in range(3)},
    }
    path = "/v1/segments/a/list-attributes"
    answer = (await served.http.get(f"{path}?limit=2&prefix=n%26")).json()
    assert answer == {"attributes": {"n&0": 0, "n&1": 1}, "after": "n&1"}
    answer = (await served.http.get(f"{path}?after=n%261")).json()
    assert answer == {"attributes": {"n&2": 2}}
    answer = (await served.http.get(f"{path}?ids=true&prefix=00&limit=2")).json()
    assert answer == {"attributes": {}, "ids": {f"{first}00": 0, f"{first}01": 1}, "after": f"{first}01"}
    answer = (await served.http.get(f"{path}?ids=true&after={first}01")).json()
    assert answer == {"attributes": {}, "ids": {f"{first}02": 2}}
    for query in ("limit=0", "limit=5000", "ids=true&prefix=0", "ids=true&prefix=zz", "ids=true&after=00"):
        assert (await served.http.get(f"{path}?{query}")).status_code == 400, query
    for update in (
        {"value": 1},
        {"value": 1, "name": "a", "id": "00" * 16},
        {"value": 1, "id": "00" * 15},
        {"value": 1, "name": "n&0", "expected": 7},
        {"value": 1, "id": f"{first}00", "kind": "accumulate", "expected": 0},
    ):
        refused = await post(served, "/v1/segments/a/attributes", {"updates": [update]})
        assert refused.status_code == 400, update


async def test_a_segments_life(served: ServedStore) -> None:
    assert (await post(served, "/v1/segments/a/create", {"rolling_size": 1})).status_code == 400
    assert (await post(served, "/v1/segments/a/create", {"rolling_size": 1 << 20})).status_code == 201
    assert (await append(served, "a", b"hello ")).json() == {"offset": 0}
    assert (await append(served, "a", b"world")).json() == {"offset": 6}
    assert (await served.http.get("/v1/segments/a/bytes")).content == b"hello world"
    assert (await post(served, "/v1/segments/a/truncate", {"offset": 6})).json() == {}
    assert (
        await post(served, "/v1/segments/a/attributes", {"updates": [{"name": "x", "value": 3}]})
    ).json() == {"attributes": {"x": 3}}
    assert (await post(served, "/v1/segments/a/seal")).json() == {"length": 11}

    info = bodies.decode_answer((await served.http.get("/v1/segments/a/info")).content, SegmentInfo)

    assert info == await served.store.segment_info("a")
    assert (info.start_offset, info.length, info.sealed, dict(info.attributes)) == (6, 11, True, {"x": 3})
    assert (await served.http.get("/v1/segments")).json() == {"segments": ["a"]}
    assert (await post(served, "/v1/segments/a/delete")).json() == {}
    assert (await served.http.get("/v1/segments")).json() == {"segments": []}


async def test_h20_segments_are_listed_in_pages(served: ServedStore) -> None:
    for name in ("a#1", "a#2", "b"):
        await served.store.create_segment(name)
    first = (await served.http.get("/v1/segments?prefix=a%23&limit=1")).json()
    assert first["segments"] == ["a#1"]
    token = quote(first["token"], safe="")
    following = (await served.http.get(f"/v1/segments?prefix=a%23&token={token}")).json()
    assert following == {"segments": ["a#2"]}
    for query in ("limit=0", "limit=1001", f"token={token}", "prefix=a%23&token=x"):
        assert (await served.http.get(f"/v1/segments?{query}")).status_code == 400, query


async def test_h1_a_name_of_slashes_hashes_and_verbs(served: ServedStore) -> None:
    name = "app/events/append#part-\u00e4"
    await served.store.create_segment(name)

    assert (await append(served, "app/events/append%23part-%C3%A4", b"x")).json() == {"offset": 0}
    assert await served.store.read(name, 0, 9) == b"x"
    assert (await served.http.get("/v1/segments", params={"prefix": "app/events/append#"})).json() == {
        "segments": [name]
    }


async def test_idempotent_and_conditional_appends(served: ServedStore) -> None:
    await served.store.create_segment("a")
    identity = {"Tierlog-Writer-Id": "w%00", "Tierlog-Event-Number": "5"}

    assert (await append(served, "a", b"one", **identity)).json() == {"offset": 0}
    assert (await append(served, "a", b"one", **identity)).json() == {"offset": 0}
    assert isinstance(
        problem(await append(served, "a", b"x", **{**identity, "Tierlog-Event-Number": "7"})), OutOfOrder
    )
    gap = {**identity, "Tierlog-Event-Number": "9", "Tierlog-Previous-Event-Number": "5"}
    assert (await append(served, "a", b"two", **gap)).json() == {"offset": 3}
    assert (await append(served, "a", b"one", **identity)).json() == {"offset": None}
    assert (await append(served, "a", b"x", **{"Tierlog-Expected-Offset": "6"})).json() == {"offset": 6}
    refused = problem(await append(served, "a", b"x", **{"Tierlog-Expected-Offset": "6"}))
    assert isinstance(refused, BadOffset)
    assert (refused.expected, refused.given) == (7, 6)

    assert (await served.http.get("/v1/segments/a/last-event-number?writer_id=w%00")).json() == {
        "event_number": 9
    }
    assert (await served.http.get("/v1/segments/a/last-event-number?writer_id=other")).json() == {
        "event_number": None
    }
    assert (
        await post(served, "/v1/segments/a/expire-writers", {"writer_ids": ["w%00", "other"]})
    ).json() == {"known": 1}
    assert (
        problem(await append(served, "a", b"x", **{**gap, "Tierlog-Event-Number": "10"})).code
        == "unknown-writer"
    )


@pytest.mark.parametrize(
    "method, path, body, status, code",
    [
        ("POST", "/v1/segments/a/create", {}, 409, "segment-exists"),
        ("POST", "/v1/segments/b/seal", None, 404, "segment-not-found"),
        ("GET", "/v1/segments/b/info", None, 404, "segment-not-found"),
        ("GET", "/v1/segments/b/bytes", None, 404, "segment-not-found"),
        ("GET", "/v1/segments/b/tail", None, 404, "segment-not-found"),
        ("GET", "/v1/segments/b/tail?stream=true", None, 404, "segment-not-found"),
        ("POST", "/v1/segments/a/truncate", {"offset": 9}, 412, "bad-offset"),
        ("POST", "/v1/segments/a/attributes", {"updates": [CONDITIONAL]}, 409, "attribute-conflict"),
        ("POST", "/v1/segments/a//b/create", {}, 400, "invalid-argument"),
        ("POST", "/v1/segments/_system/x/create", {}, 400, "invalid-argument"),
        ("POST", "/v1/segments/%FF/create", {}, 400, "invalid-argument"),
        ("POST", "/v1/segments/a/truncate", {"offset": -1}, 400, "invalid-argument"),
        ("POST", "/v1/segments/a/truncate", {}, 400, "invalid-argument"),
        ("POST", "/v1/segments/a/attributes", {"updates": []}, 400, "invalid-argument"),
        ("POST", "/v1/segments/a/merge", {"sources": []}, 400, "invalid-argument"),
        ("GET", "/v1/segments/a/tail?offset=-1", None, 400, "invalid-argument"),
        ("GET", "/v1/segments/a/tail?wait=61", None, 400, "invalid-argument"),
        ("GET", "/v1/segments/a/tail?stream=yes", None, 400, "invalid-argument"),
        ("GET", "/v1/segments/a/last-event-number", None, 400, "invalid-argument"),
        ("GET", "/v1/segments?perfix=a", None, 400, "invalid-argument"),
        ("GET", "/v1/segments/a", None, 404, "no-such-path"),
        ("GET", "/v2/segments", None, 404, "no-such-path"),
        ("GET", "/health/", None, 404, "no-such-path"),
        ("GET", "/v1/segments/a/append", None, 405, "method-not-allowed"),
        ("DELETE", "/v1/segments/a/append", None, 405, "method-not-allowed"),
        ("POST", "/v1/segments", {}, 405, "method-not-allowed"),
    ],
)  # fmt: skip
async def test_h2_refusals(
    served: ServedStore, method: str, path: str, body: Any, status: int, code: str
) -> None:
    await served.store.create_segment("a")

    response = (
        await served.http.request(method, path, json=body)
        if body is not None
        else await served.http.request(method, path)
    )

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["request_id"] == response.headers["x-request-id"]


# --- batches ------------------------------------------------------------------------------------


async def test_h7_each_item_has_its_own_outcome(served: ServedStore) -> None:
    for name in ("a", "b"):
        await served.store.create_segment(name)
    await served.store.seal_segment("b")

    outcomes = await send_batch(
        served,
        [
            BatchItem("a", b"one"),
            BatchItem("b", b"x"),
            BatchItem("missing", b"x"),
            BatchItem("a", b"two", expected_offset=3),
            BatchItem("a", b"x", expected_offset=3),
            BatchItem("a", b"345", b"w", 3, 3),
            BatchItem("a", b"345", b"w", 3, 3),
            BatchItem("a", b"4", b"w", 4, 1),
            BatchItem("a", b"9", b"w", 9, 1),
        ],
    )

    assert [outcomes[0], outcomes[3], outcomes[5], outcomes[6], outcomes[7]] == [0, 3, 6, 6, None]
    assert [type(outcomes[index]) for index in (1, 2, 4, 8)] == [
        SegmentSealed,
        SegmentNotFound,
        BadOffset,
        OutOfOrder,
    ]
    assert await served.store.read("a", 0, 99) == b"onetwo345"


async def test_h7_items_to_one_segment_are_applied_in_order(served: ServedStore) -> None:
    names = [f"s{index}" for index in range(8)]
    for name in names:
        await served.store.create_segment(name)

    items = [BatchItem(names[index % 8], b"%04d" % index) for index in range(2000)]
    outcomes = await send_batch(served, items)

    assert outcomes == [4 * (index // 8) for index in range(2000)]
    for place, name in enumerate(names):
        assert await served.store.read(name, 0, 9999) == b"".join(
            b"%04d" % index for index in range(place, 2000, 8)
        )


async def test_h7_a_batch_larger_than_the_mailbox_keeps_its_order(tmp_path: Path) -> None:
    from support.stores import config
    from tierlog.actors.settings.configuration import MailboxConfig

    async with service(tmp_path, config=config(mailbox=MailboxConfig(count=16))) as served:
        await served.store.create_segment("a")

        outcomes = await send_batch(
            served, [BatchItem("a", b"%04d" % index, b"w", index, 1) for index in range(500)]
        )

        assert outcomes == [4 * index for index in range(500)]


@pytest.mark.parametrize("cut", [1, 20, 100])
async def test_h7_a_batch_that_is_cut_off_has_no_effect(served: ServedStore, cut: int) -> None:
    await served.store.create_segment("a")
    body = b"".join(encode_batch([BatchItem("a", bytes(200)) for _ in range(5)]))

    response = await served.http.post("/v1/batch", content=body[:-cut], headers={"Content-Type": BATCH_TYPE})

    assert (response.status_code, problem(response).code) == (400, "invalid-argument")
    assert (await served.store.segment_info("a")).length == 0


# --- other owners, and failures of the store -----------------------------------------------------


async def test_h13_a_client_reads_that_the_container_moved_and_nothing_of_the_hosts_files(
    tmp_path: Path,
) -> None:
    """An owner that was fenced: the append that finds it out, and the next call."""
    folder, errors = tmp_path / "data", list[TierlogError]()
    async with open_store(folder, containers=1) as store:
        await store.create_segment("a")
        async with serving(store, owner_of=lambda container: None) as served:
            async with open_store(folder, containers=1, take_over=True):
                for _ in range(2):
                    errors.append(problem(await append(served, "a", b"x")))
            [outcome] = await send_batch(served, [BatchItem("a", b"x")])

    unknown, lost = errors
    assert (unknown.code, lost.code) == ("outcome-unknown", "not-owner")
    assert "this host lost container 0" in str(unknown)
    assert "writer_id" in str(unknown)
    assert str(lost) == str(outcome) == "container 0 is no longer served here"
    assert str(folder) not in str(unknown)


async def test_h2_a_host_of_several_refuses_a_malformed_name(tmp_path: Path) -> None:
    async with (
        open_store(tmp_path / "data", containers=1) as store,
        serving(store, owner_of=lambda container: None) as served,
    ):
        read = await served.http.get("/v1/segments/a%20b/info")
        response = await append(served, "a b", b"x")

    assert problem(read).code == problem(response).code == "invalid-argument"


@pytest.mark.parametrize("owner", ["http://127.0.0.1:1", None])
async def test_h13_another_hosts_segment_is_answered_with_its_owner(
    tmp_path: Path, owner: str | None
) -> None:
    async def elsewhere(*args: object, **more: object) -> None:
        raise NotOwner("container 0 is not served here")

    async def each(items: list[BatchItem]) -> list[Any]:
        return [NotOwner("not here") for _ in items]

    async with open_store(tmp_path / "data", containers=1) as store:
        wrapped = Wrapped(store, append=elsewhere, segment_info=elsewhere, append_each=each)
        async with serving(wrapped, owner_of=lambda container: owner) as served:
            response = await append(served, "a", b"x")
            [outcome] = await send_batch(served, [BatchItem("a", b"x")])
            read = await served.http.get("/v1/segments/a/bytes")

    expected = NotOwner if owner is None else OwnedElsewhere
    assert (response.status_code, response.headers.get("tierlog-owner")) == (421, owner)
    assert type(problem(response)) is type(problem(read)) is type(outcome) is expected


@pytest.mark.parametrize(
    "error, status", [(Throttled("slow"), 429), (Unavailable("recovering"), 503), (StorageFull("full"), 507)]
)
async def test_h12_the_stores_pressure_comes_with_a_pause(
    tmp_path: Path, error: TierlogError, status: int
) -> None:
    async def refuse(*args: object, **more: object) -> None:
        raise error

    async with (
        open_store(tmp_path / "data", containers=1) as store,
        serving(Wrapped(store, append=refuse)) as served,
    ):
        response = await append(served, "a", b"x")

    assert response.status_code == status
    assert int(response.headers["retry-after"]) >= 1
    assert type(problem(response)) is type(error)


async def test_an_unexpected_error_is_a_problem_without_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*args: object, **more: object) -> None:
        raise KeyError("a secret")

    async with (
        open_store(tmp_path / "data", containers=1) as store,
        serving(Wrapped(store, append=fail)) as served,
    ):
        response = await append(served, "a", b"x", **{"X-Request-Id": "find-me"})

    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "secret" not in response.text
    assert "secret" in caplog.text
    assert "find-me" in caplog.text


async def test_the_container_map_is_the_given_one(tmp_path: Path) -> None:
    known = ContainerMap(3, (ContainerAssignment(0, "http://other", 8),))
    async with service(tmp_path, container_map=lambda: known) as served:
        assert bodies.decode_map((await served.http.get("/v1/containers")).content) == known


async def test_a_single_host_claims_every_container(served: ServedStore) -> None:
    found = bodies.decode_map((await served.http.get("/v1/containers")).content)

    assert [(place.container, place.url, place.epoch) for place in found.containers] == [
        (0, None, 1),
        (1, None, 1),
    ]


async def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path) -> None:
    times = iter([2_000_000_000.0, 1.0, 1_500_000_000.0, -5.0])

    def wall_clock() -> float:
        return next(times, 0.0)

    world = replace(system_world(), wall_clock=wall_clock)
    async with open_store(tmp_path / "data", containers=1, world=world) as store, serving(store) as served:
        await served.store.create_segment("a")
        offsets = [
            (await served.http.post("/v1/segments/a/append", content=b"x", headers=RAW)).json()["offset"]
            for _ in range(5)
        ]
        late = await served.http.get("/v1/segments/a/tail?offset=5&wait=0.01")
        metrics = await served.http.get("/metrics")

    assert offsets == [0, 1, 2, 3, 4]
    assert late.status_code == 204
    sums = [
        line
        for line in metrics.text.splitlines()
        if line.startswith("tierlog_http_request_duration_seconds_sum")
    ]
    assert all(float(line.split()[-1]) >= 0 for line in sums)
    assert sums
