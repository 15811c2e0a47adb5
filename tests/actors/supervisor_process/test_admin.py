"""The supervisor's HTTP side and the commands that use it, against one running service."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.command_line import Run, in_this_process, is_one_line
from support.live_service import SyncOwnService, name_in, nothing_left, wait_until
from tierlog import connect_sync

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncOwnService]:
    folder = tmp_path_factory.mktemp("admin") / "data"
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="tl-") as runtime:
        patch.setenv("XDG_RUNTIME_DIR", runtime)
        with nothing_left(folder, Path(runtime)), SyncOwnService(folder, containers=3) as running:
            running.settle()
            yield running


@pytest.fixture
def tierlog(
    service: SyncOwnService, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Run]:
    """The command line, on that service."""
    monkeypatch.setenv("TIERLOG_URL", service.url)
    with in_this_process(capfdbinary) as run:
        yield run


def problem(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    return document


def test_health_and_readiness(service: SyncOwnService) -> None:
    assert service.client.get("/health").json() == {"status": "ok", "unhealthy_storage": {}}
    answer = service.client.get("/ready")
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "ready": True,
            "draining": False,
            "containers": [{"container": index, "state": "active"} for index in range(3)],
            "containers_not_served": [],
        },
    )


def test_a_clients_health_is_the_services_readiness(service: SyncOwnService) -> None:
    with connect_sync(service.url) as client:
        status = client.health()

    assert (status.ready, status.draining) == (True, False)
    assert [(each.container, each.state) for each in status.containers] == [
        (index, "active") for index in range(3)
    ]


def test_a_clients_health_of_a_host_is_that_hosts_own(service: SyncOwnService) -> None:
    for host in service.status()["hosts"]:
        with connect_sync(host["url"]) as client:
            status = client.health()

        assert (status.ready, status.draining) == (True, False)
        assert {each.container for each in status.containers if each.state == "active"} >= {
            container for container, (owner, _) in service.assignments().items() if owner == host["id"]
        }


def test_the_map_names_each_containers_host_and_epoch(service: SyncOwnService) -> None:
    document = service.client.get("/v1/containers").json()
    urls = {host["id"]: host["url"] for host in service.status()["hosts"]}
    expected = {index: (urls[host], epoch) for index, (host, epoch) in service.assignments().items()}
    assert {
        assignment["container"]: (assignment["url"], assignment["epoch"])
        for assignment in document["containers"]
    } == expected
    for url in urls.values():
        assert httpx.get(f"{url}/health").status_code == 200

        def reports(url: str = url) -> bool:
            reported = httpx.get(f"{url}/v1/containers").json()["containers"]
            return [assignment["url"] for assignment in reported] == [
                assignment["url"] for assignment in document["containers"]
            ]

        # A host learns of the others' containers after the supervisor.
        wait_until(reports, f"the map of {url}")


@pytest.mark.parametrize(
    "method, path, document, status, detail",
    [
        ("POST", "/v1/containers/9/move", {"host": "host-0"}, 404, "the containers are 0 to 2"),
        ("POST", "/v1/containers/0/move", {"host": "host-9"}, 404, "no host 'host-9'"),
        ("POST", "/v1/containers/0/move", {}, 400, "missing required field `host`"),
        ("POST", "/v1/containers/0/move", {"host": "host-0", "now": True}, 400, "unknown field `now`"),
        ("POST", "/v1/containers/0/move", {"host": 1}, 400, "Expected `str | null`"),
        ("POST", "/v1/containers/x/open", {}, 400, "a container is a number"),
        ("POST", "/v1/containers/7/open", {}, 404, "the containers are 0 to 2"),
        ("POST", "/v1/hosts/host-7/drain", {}, 404, "the hosts are host-0, host-1"),
        ("POST", "/v1/roll", {"fast": 1}, 400, "unknown field `fast`"),
        ("POST", "/v1/roll?fast=1", {}, 400, "fast"),
        ("GET", "/v1/containers?after=x", None, 400, "after"),
        ("GET", "/v1/containers?soon=1", None, 400, "soon"),
        ("GET", "/v1/nothing", None, 404, "there is nothing here"),
        ("GET", "/v1/roll", None, 405, "this path takes POST"),
        ("PUT", "/v1/status", {}, 405, "this path takes GET, HEAD"),
        ("GET", "/v1/segments/app", None, 404, "the path of a segment ends with a verb"),
    ],
)
def test_a_bad_request_is_refused(
    service: SyncOwnService, method: str, path: str, document: Any, status: int, detail: str
) -> None:
    answer = service.client.request(method, path, json=document)
    assert answer.status_code == status
    assert detail in problem(answer)["detail"]


def test_an_origin_that_is_given_twice_is_refused(service: SyncOwnService) -> None:
    pids = service.pids()
    ours = str(service.client.base_url).rstrip("/")
    answer = service.client.post("/v1/roll", headers=[("Origin", "http://evil.example"), ("Origin", ours)])
    assert answer.status_code == 400
    assert service.pids() == pids


def test_data_requests_are_sent_to_the_host_that_has_the_container(service: SyncOwnService) -> None:
    for index, (host, _) in service.assignments().items():
        name = name_in(index, 3)
        answer = service.client.post(f"/v1/segments/{name}/append?x=1", follow_redirects=False)
        assert answer.status_code == 307
        assert answer.headers["location"] == f"{service.host(host)['url']}/v1/segments/{name}/append?x=1"
    answer = service.client.get("/v1/segments/app/a%23b/info", follow_redirects=False)
    assert answer.headers["location"].endswith("/v1/segments/app/a%23b/info")


def test_a_batch_is_answered_that_no_owner_is_here(service: SyncOwnService) -> None:
    answer = service.client.post(
        "/v1/batch", content=b"x", headers={"Content-Type": "application/x-tierlog-batch"}
    )
    assert answer.status_code == 421
    assert problem(answer)["code"] == "not-owner"


def test_requests_about_all_hosts_are_sent_to_each(service: SyncOwnService) -> None:
    names = [f"list/{name_in(index, 3)}" for index in range(3)]
    for name in names:
        service.create(name)
        service.append(name, b"x")
    assert service.client.get("/v1/segments", params={"prefix": "list/"}).json() == {
        "segments": sorted(names)
    }
    pages: list[str] = []
    query: dict[str, str] = {"prefix": "list/", "limit": "1"}
    while True:
        page = service.client.get("/v1/segments", params=query).json()
        pages += page["segments"]
        if "token" not in page:
            break
        query["token"] = page["token"]
    assert pages == sorted(names)
    for name in names:
        assert (
            service.post(f"/v1/segments/{name}/begin-transaction", {"transaction_id": "t-1"}).status_code
            == 200
        )
    reported = service.client.get("/v1/transactions", params={"prefix": "list/"}).json()["transactions"]
    assert [(each["target"], each["state"]) for each in reported] == [
        (name, "open") for name in sorted(names)
    ]
    assert service.post("/v1/flush").status_code == 200


def test_metrics_show_hosts_assignments_and_failovers(service: SyncOwnService) -> None:
    text = service.client.get("/metrics").text
    assert 'tierlog_supervised_host_phase{host="host-0",phase="serving"} 1.0' in text
    assert 'tierlog_assignment_phase{container="2",phase="serving"} 1.0' in text
    assert "tierlog_supervisor_failovers_total 0.0" in text
    assert 'tierlog_failover_seconds_bucket{le="+Inf"} 0.0' in text


def test_the_page_shows_the_status_and_polls(service: SyncOwnService) -> None:
    answer = service.client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert b"width=device-width" in answer.content  # a phone shows it at its own width
    assert 'http-equiv="refresh"' in answer.text
    assert "host-1" in answer.text


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/status"])
def test_head_is_answered_like_get_without_a_body(service: SyncOwnService, path: str) -> None:
    get, head = service.client.get(path), service.client.head(path)
    assert (head.status_code, head.headers["content-type"]) == (get.status_code, get.headers["content-type"])
    assert head.content == b""


def test_the_openapi_document_has_every_path(service: SyncOwnService) -> None:
    paths = service.client.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        (method,) = operations
        real = path.replace("{container}", "x").replace("{host}", "x").replace("{name}", "x")
        answer = service.client.request(method, real, json={"x": 1}, follow_redirects=False)
        assert answer.status_code not in (404, 405), path
    assert {"/v1/roll", "/v1/segments", "/v1/segments/{name}/append"} <= paths.keys()


def test_status_as_tables_and_as_json(service: SyncOwnService, tierlog: Run) -> None:
    shown = tierlog("status")
    assert shown.code == 0
    for word in ("ready", "failovers: 0", "host-0", "host-1", "epoch", "unflushed"):
        assert word in shown.out
    reported = json.loads(tierlog("status", "--json").out)
    assert [host["pid"] for host in reported["hosts"]] == list(service.pids().values())
    assert reported["pid"] == service.process.pid


def test_orders_from_the_command_line(service: SyncOwnService, tierlog: Run) -> None:
    host = next(host for host in service.pids() if host != service.assignments()[1][0])
    moved = tierlog("container", "move", "1", host)
    assert (moved.code, moved.out) == (
        0,
        f"container 1 is moving to {host}; `tierlog status` shows the progress\n",
    )
    wait_until(lambda: service.assignments().get(1, ("",))[0] == host, "the container has moved")
    pid = service.pids()["host-0"]
    assert tierlog("host", "drain", "host-0").code == 0
    wait_until(lambda: service.pids()["host-0"] not in (pid, 0), "the host has started again")
    wait_until(lambda: service.status()["ready"], "everything is served")


def test_orders_that_change_nothing_are_reported_as_such(service: SyncOwnService, tierlog: Run) -> None:
    host = service.assignments()[1][0]
    assert tierlog("container", "move", "1", host).out == f"container 1 is already on {host}\n"
    assert tierlog("container", "move", "1", "--unpin").out == "container 1 is not pinned any more\n"
    for both in (("--unpin", host), ()):
        refused = tierlog("container", "move", "1", *both)
        assert (refused.code, is_one_line(refused.err)) == (2, True)
    assert "container 1 is being opened" in tierlog("container", "open", "1").out
    wait_until(lambda: service.status()["ready"], "its host has confirmed it")
    assert service.assignments()[1][0] == host
    assert tierlog("host", "start", host).out == f"{host} is already serving\n"


@pytest.mark.parametrize(
    "arguments",
    [("container", "open", "9"), ("host", "start", "host-9"), ("container", "move", "0", "host-9")],
)
def test_refused_orders_are_reported_in_one_line(tierlog: Run, arguments: tuple[str, ...]) -> None:
    done = tierlog(*arguments)
    assert done.code == 1
    assert is_one_line(done.err)


def test_a_host_that_is_asked_for_what_only_the_supervisor_knows_is_named_as_one(
    service: SyncOwnService, tierlog: Run
) -> None:
    url = service.host("host-0")["url"]
    for command in (("status",), ("host", "start", "host-0"), ("roll",)):
        done = tierlog(*command, f"--url={url}")
        assert (done.code, is_one_line(done.err)) == (1, True)
        assert f"{url} is a host, and only the supervisor knows all" in done.err
        assert "at the URL that `tierlog serve` or `tierlog supervise` printed" in done.err


def test_a_missing_service_is_reported_in_one_line(tierlog: Run) -> None:
    done = tierlog("status", "--url=http://127.0.0.1:1")
    assert done.code == 1
    assert is_one_line(done.err)
    assert "Connection refused; check the URL, and that `tierlog serve` runs there" in done.err
