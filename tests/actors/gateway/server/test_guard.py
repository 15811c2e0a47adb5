"""Requests that a stranger's page could have sent, to a host and to the supervisor (rule H18)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from support.fake_hosts import FakeHostsSupervisor
from support.http_server import everything, serving
from tierlog import open_store
from tierlog.actors.gateway.server.guard import Guard
from tierlog.actors.gateway.server.listener import bind, serve_http
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.supervisor.admin import make_admin_app
from tierlog.storage_backends.base.errors import InvalidArgument

pytestmark = pytest.mark.anyio
SERVERS = ["host", "supervisor"]
NAMES = ("10.0.0.1", "Store.Example.Org")


@pytest.fixture(params=SERVERS)
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[int]:
    async with running(request.param, tmp_path) as found:
        yield found


@asynccontextmanager
async def running(server: str, folder: Path) -> AsyncIterator[int]:
    if server == "host":
        async with (
            open_store(folder / "data", containers=1) as store,
            serving(store, names=NAMES) as served,
        ):
            yield served.port
    else:
        app = make_admin_app(FakeHostsSupervisor(3, 2), {}, system_world(), names=NAMES)
        async with serve_http(app, bind("127.0.0.1", 0), stop_timeout=1.0) as address:
            yield address.port


async def ask(port: int, line: str, *headers: str) -> bytes:
    head = "\r\n".join([line, *headers, "connection: close", "", ""])
    stream = await anyio.connect_tcp("127.0.0.1", port)
    await stream.send(head.encode("latin-1"))
    return await everything(stream)


CREATE = "POST /v1/segments/a/create HTTP/1.1"
HOSTS = ["localhost", "LOCALHOST:1", "app.localhost:80", "127.0.0.1", "127.9.9.9:5", "[::1]", "[::1]:8470",
         "10.0.0.1:8470", "store.example.org", "store.example.org.:8470"]  # fmt: skip
FOREIGN = ["evil.example", "evil.example:8470", "10.0.0.2", "localhost.evil.example",
           "127.0.0.1.evil.example", "", ":8470", "127.0.0.1:x", "store.example.org@evil.example",
           "[::1", "0", "a b"]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
async def test_h18_a_request_may_name_loopback_and_the_servers_own_names(port: int, host: str) -> None:
    answer = await ask(port, "GET /health HTTP/1.1", f"host: {host}")

    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("line", ["GET /health HTTP/1.1", CREATE])
@pytest.mark.parametrize("host", FOREIGN)
async def test_h18_a_request_to_another_name_is_refused_with_the_setting_that_allows_it(
    port: int, host: str, line: str
) -> None:
    answer = await ask(port, line, f"host: {host}")

    assert answer.startswith(b"HTTP/1.1 421 ")
    assert b'"code": "unknown-host"' in answer
    assert b"server.advertise" in answer


@pytest.mark.parametrize("headers", [(), ("host: localhost", "host: localhost")])
async def test_h18_a_missing_and_a_repeated_host_are_refused(port: int, headers: tuple[str, ...]) -> None:
    answer = await ask(port, "GET /health HTTP/1.1", *headers)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Host" in answer


async def test_h18_a_request_of_http_1_0_needs_no_host_but_may_name_no_other(port: int) -> None:
    assert (await ask(port, "GET /health HTTP/1.0")).startswith(b"HTTP/1.1 200 ")
    assert (await ask(port, "GET /health HTTP/1.0", "host: evil.example")).startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize(
    "authority, status",
    [
        ("evil.example", 421),
        ("localhost@evil.example", 421),
        ("evil.example@localhost", 421),
        ("[::1]:8470", 200),
        ("Store.example.org:8470", 200),
    ],
)
@pytest.mark.parametrize("headers", [("HTTP/1.1", "host: localhost"), ("HTTP/1.0",)])
async def test_h18_the_authority_of_an_absolute_target_stands_for_the_host(
    port: int, authority: str, status: int, headers: tuple[str, ...]
) -> None:
    protocol, *host = headers

    answer = await ask(port, f"GET http://{authority}/health {protocol}", *host)

    assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_h18_an_absolute_target_does_not_replace_a_missing_host_and_may_have_no_path(port: int) -> None:
    assert (await ask(port, "GET http://localhost/health HTTP/1.1")).startswith(b"HTTP/1.1 400 ")
    answer = await ask(port, "GET http://localhost HTTP/1.1", "host: localhost")
    assert (
        answer.partition(b"\r\n")[0]
        == (await ask(port, "GET / HTTP/1.1", "host: localhost")).partition(b"\r\n")[0]
    )


async def test_h18_an_origin_is_compared_with_the_authority_of_an_absolute_target(port: int) -> None:
    line = "POST http://127.0.0.1/v1/none HTTP/1.1"

    own = await ask(port, line, "host: localhost", "origin: http://127.0.0.1")
    other = await ask(port, line, "host: localhost", "origin: http://localhost")

    assert own.startswith(b"HTTP/1.1 404 ")
    assert other.startswith(b"HTTP/1.1 403 ")


PAGES = [
    ["origin: http://evil.example"],
    ["origin: null"],
    ["origin: http://localhost:1"],
    ["origin: http://[::1"],
    ["origin: https://localhost"],
    ["origin: http://localhost/"],
    ["origin: //localhost"],
    ["origin: localhost"],
    ["origin: "],
    ["sec-fetch-site: cross-site"],
    ["sec-fetch-site: Cross-Site"],
    ["sec-fetch-site: cross-site;x=1"],
    ["origin: http://localhost", "sec-fetch-site: cross-site"],
]


CHANGES = ["/v1/segments/a/create", "/v1/batch", "/v1/flush", "/v1/roll", "/nothing"]


@pytest.mark.parametrize(
    "path, page", [*((CHANGES[0], page) for page in PAGES), *((path, PAGES[0]) for path in CHANGES[1:])]
)
async def test_h18_a_change_that_a_page_of_another_site_sends_is_refused_before_all_else(
    port: int, path: str, page: list[str]
) -> None:
    answer = await ask(port, f"POST {path} HTTP/1.1", "host: localhost", *page)

    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b'"code": "cross-origin"' in answer


async def test_h18_a_repeated_origin_is_refused(port: int) -> None:
    ours = "origin: http://localhost"

    assert (await ask(port, CREATE, "host: localhost", ours, ours)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "XYZ"])
async def test_h18_no_other_method_gets_further(port: int, method: str) -> None:
    answer = await ask(port, f"{method} /v1/segments/a/info HTTP/1.1", "host: localhost", "origin: null")

    assert answer.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 400 "))


async def test_h18_the_servers_own_page_may_send_changes_and_any_page_may_be_shown_an_answer(
    port: int,
) -> None:
    own = await ask(port, "POST /v1/none HTTP/1.1", "host: localhost:80", "origin: http://LOCALHOST")
    shown = await ask(port, "GET /health HTTP/1.1", "host: localhost", *PAGES[0], *PAGES[9])

    assert own.startswith(b"HTTP/1.1 404 ")
    assert shown.startswith(b"HTTP/1.1 200 ")


def test_h18_an_address_that_a_connection_was_made_to_is_a_name_of_the_server() -> None:
    def refusal(server: str, host: bytes) -> object:
        scope = {"headers": [(b"host", host)], "server": (server, 1), "method": "GET", "http_version": "1.1"}
        return Guard().refusal(scope)

    assert refusal("10.1.1.1", b"10.1.1.1:8470") is None
    assert refusal("::ffff:10.1.1.2", b"10.1.1.2") is None
    assert refusal("fe80::1", b"[FE80:0::1]:80") is None
    assert isinstance(refusal("10.1.1.3", b"10.1.1.4"), InvalidArgument)


PROXIED = Guard(["https://Store.example", "https://other.example:8443"])


@pytest.mark.parametrize("host", [b"store.example", b"127.0.0.1:8470", b"other.example:8443"])
@pytest.mark.parametrize(
    ("origin", "is_own"),
    [
        (b"https://store.example", True),
        (b"https://STORE.example:443", True),
        (b"https://other.example:8443", True),
        (b"https://store.example:8443", False),
        (b"https://other.example", False),
        (b"https://evil.example", False),
        (b"ftp://store.example", False),
        (b"null", False),
    ],
)
def test_h18_the_advertised_origin_is_the_servers_own_behind_a_proxy_with_tls(
    host: bytes, origin: bytes, is_own: bool
) -> None:
    scope = {
        "headers": [(b"host", host), (b"origin", origin)],
        "server": ("127.0.0.1", 8470),
        "scheme": "http",
        "method": "POST",
        "http_version": "1.1",
    }
    refusal = PROXIED.refusal(scope)

    assert (refusal is None) is is_own
    assert is_own or "--advertise https://NAME" in str(refusal)
