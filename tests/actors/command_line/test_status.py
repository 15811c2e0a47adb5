"""The status on terminals of several widths."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from support.command_line import Run
from support.scripted_server import json_answer, scripted
from tierlog.actors.cli.status import render_status

URL = "http://node-a.example:8470"
REASON = "the log of this container is damaged at 0003.wal, offset 4096, see tierlog doctor"
STATUS: dict[str, Any] = {
    "folder": "/srv/data",
    "pid": 4711,
    "term": 3,
    "ready": True,
    "stopping": False,
    "failovers": 1,
    "failover_seconds": [0.25],
    "requests": None,
    "machine": "node-a",
    "url": URL,
    "active_seconds": 97_445.2,
    "standbys": [],
    "imbalance": {"containers": 0, "reason": ""},
    "hosts": [
        {
            "id": f"host-{number}",
            "phase": "serving",
            "pid": 123_456,
            "containers": [number],
            "lag_seconds": 0.0125,
            "storage": {"state": "healthy", "cause": ""},
            "starts": 1,
            "last_exit": "",
            "machine": "node-a",
            "joined": number == 1,
        }
        for number in range(2)
    ],
    "containers": [
        {
            "container": number,
            "phase": "quarantined" if number else "serving",
            "host": f"host-{number}",
            "epoch": 12,
            "segments": 100_000,
            "wal_bytes": 67_108_864,
            "unflushed_bytes": 1_048_576,
            "reason": REASON if number else "",
            "unconfirmed": False,
            "log": {"state": "ok", "cause": ""},
        }
        for number in range(2)
    ],
}


NEW_IN_STATUS = {"imbalance", "machine", "url", "active_seconds", "standbys"}


def lines(width: int, status: dict[str, Any] = STATUS) -> list[str]:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(render_status(status, width, URL), crop=False)
    text: str = screen.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    return text.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_tables_fit_a_narrow_terminal_and_keep_phase_host_and_the_whole_reason(width: int) -> None:
    shown = lines(width)

    assert max(map(len, shown)) <= width
    head = next(line for line in shown if line.startswith("container"))
    assert {"phase", "host", "unflushed", "reason"} <= set(head.split())
    table = shown[shown.index(head) :]
    table = table[: table.index("")]
    reason = "".join(line[head.index("reason") :].rstrip() for line in table[1:])
    assert reason.replace(" ", "") == REASON.replace(" ", "")


def test_v11_hosts_that_joined_are_shown_with_their_machines() -> None:
    rows = [line.split()[:4] for line in lines(200) if line.startswith("host-")]
    assert [row[2:] for row in rows] == [["node-a", "123456"], ["node-a", "(joined)"]]


def test_v1_the_supervisor_and_those_that_stand_by_are_shown_with_place_and_time() -> None:
    standby = {"url": "http://node-b:8470", "machine": "node-b", "pid": 12, "waiting_seconds": 61.0}
    shown = lines(200, STATUS | {"standbys": [standby]})
    active = f"supervisor: process 4711 on node-a at {URL}, term 3, active for 1 day, 3:04:05; failovers: 1"
    assert shown[1].startswith(active)
    assert shown[2] == "standby: process 12 on node-b at http://node-b:8470, for 0:01:01"


def test_the_requests_to_a_bucket_are_shown_by_their_kind() -> None:
    requests = {"puts": 12, "gets": 34, "lists": 5, "deletes": 0}

    assert "requests to the bucket by the running processes: 12 puts, 34 gets, 5 lists, 0 deletes" in lines(
        100, STATUS | {"requests": requests}
    )
    assert not any("bucket" in line for line in lines(100))


def test_v9_containers_that_wait_to_be_moved_are_counted_with_the_reason() -> None:
    waiting = {"containers": 24, "reason": "1 at a time may be without an owner for it"}
    line = "24 containers still to move to other hosts: 1 at a time may be without an owner for it"
    assert line in lines(100, STATUS | {"imbalance": waiting})
    assert not any("still to move" in line for line in lines(100))


def test_g4_unconfirmed_containers_are_named_with_what_to_do() -> None:
    first, second = STATUS["containers"]
    status = STATUS | {"containers": [first, second | {"unconfirmed": True}]}
    assert lines(80, status)[-3:] == [
        "unconfirmed containers (1) delete no chunks:",
        f"`tierlog gc status --url {URL}` shows why",
        f"`tierlog gc sweep --confirm --url {URL}` allows it",
    ]


def test_a_container_whose_log_is_away_does_not_just_serve() -> None:
    first, second = STATUS["containers"]
    log = {"state": "unreachable", "cause": "no success for 9 s, the last error: no route"}
    shown = lines(200, STATUS | {"containers": [first | {"log": log}, second]})
    assert any("serving, log unreachable" in line for line in shown)
    assert "container 0: its log is unreachable: no success for 9 s, the last error: no route" in shown
    assert not any("log unreachable" in line for line in lines(200))


def test_v3_closed_containers_are_named_with_what_opens_them() -> None:
    first, second = STATUS["containers"]
    status = STATUS | {"containers": [first | {"phase": "fenced"}, second]}
    [line] = [line for line in lines(200, status) if line.startswith("closed containers")]
    assert line.startswith("closed containers (0, 1): ")
    assert "`tierlog container open`" in line


def test_v4_the_status_of_a_service_of_an_earlier_version_is_shown(run: Run) -> None:
    """It answers during an upgrade, before its hosts are rolled."""
    [host], [container] = STATUS["hosts"][:1], STATUS["containers"][:1]
    earlier = {name: value for name, value in STATUS.items() if name not in NEW_IN_STATUS} | {
        "hosts": [host | {"storage": {"trouble": "none"}}],
        "containers": [{name: value for name, value in container.items() if name != "unconfirmed"}],
    }
    with scripted(lambda received: json_answer(earlier)) as server:
        shown = run("status", "--url", server.url)

    assert (shown.code, shown.err) == (0, "")
    row = next(line for line in shown.out.splitlines() if line.startswith("host-0"))
    assert "unknown" in row.split()
    assert "supervisor: process 4711, term 3; failovers: 1" in shown.out
    assert all(line == line.rstrip() for line in shown.out.splitlines())


def test_a_wide_terminal_shows_every_column_on_one_line_each() -> None:
    shown = lines(200)

    every = "host phase machine pid containers lag storage starts last exit"
    assert any(" ".join(line.split()) == every for line in shown)
    assert any(line.rstrip().endswith(REASON) for line in shown)


@pytest.mark.parametrize("phase", ["silent", "serving"])
@pytest.mark.parametrize("joined", [False, True])
def test_the_drain_of_the_last_host_asks_first(
    run: Run, phase: str, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    first, second = STATUS["hosts"]
    status = {**STATUS, "hosts": [{**first, "joined": joined}, {**second, "phase": phase}]}
    with scripted(lambda received: json_answer(status)) as server:
        refused = run("host", "drain", "host-0", "--url", server.url)
        asked = [received.method for received in server.received]
        agreed = run("host", "drain", "host-0", "--yes", "--url", server.url)
    assert agreed.code == 0
    if phase == "serving":
        assert (refused.code, asked) == (0, ["GET", "POST"]), "the other host takes them"
        return
    until = "another host joins" if joined else "it is back"
    assert (refused.code, asked) == (1, ["GET"])
    assert refused.err == (
        "error: no other host accepts containers: 1 container of host-0 will have no host until "
        f"{until}; not confirmed: add --yes\n"
    )
