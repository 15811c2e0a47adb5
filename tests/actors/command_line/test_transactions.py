"""``tierlog txn``: on a folder, which may be open elsewhere, and of a service."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import tierlog
from support.command_line import NAME, Done, Run, is_one_line, piped
from support.service import service
from support.stores import CONFIG
from tierlog import SyncClient, TransactionToken

TOKEN = TransactionToken("query", 3)


async def begin(store: Any) -> None:
    """On ``NAME`` an open transaction with one part, and a committed one; an open one on another target."""
    for target in (NAME, "b"):
        await store.create_segment(target)
        await store.begin_transaction(target, "t-1", token=TOKEN, lease=60.5)
    await store.append(await store.stage_segment(NAME, "t-1", "p0"), b"bytes")
    await store.begin_transaction(NAME, "done")
    await store.commit_transaction(NAME, "done", [])


@pytest.fixture(params=["folder", "service"])
def where(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, ...]]:
    """The options that name the store."""

    async def make() -> None:
        async with tierlog.open_store(folder, containers=4, config=CONFIG) as store:
            await begin(store)

    anyio.run(make)
    if request.param == "folder":
        yield ()
    else:
        with service(folder, containers=4) as url:
            yield ("--url", url)


def test_ls_shows_open_and_ended_ones(run: Run, where: tuple[str, ...]) -> None:
    lines = [line.split() for line in run("txn", "ls", *where).out.splitlines()]

    assert lines == [
        ["bytes", "staged", "state", "target", "id"],
        ["0", "0", "committed", NAME, "done"],
        ["5", "1", "open", NAME, "t-1"],
        ["0", "0", "open", "b", "t-1"],
    ]
    assert [each["target"] for each in json.loads(run("txn", "ls", "b", "--json", *where).out)] == ["b"]
    assert json.loads(run("txn", "ls", "none", "--json", *where).out) == []


def test_show_prints_everything_known(run: Run, where: tuple[str, ...]) -> None:
    found = json.loads(run("txn", "show", NAME, "t-1", "--json", *where).out)
    expires_in = found.pop("expires_in")

    assert found == {
        "transaction_id": "t-1",
        "target": NAME,
        "state": "open",
        "token": {"writer": "query", "epoch": 3},
        "lease": 60.5,
        "reason": "",
        "offset": None,
        "length": 5,
        "staged": [{"name": f"{NAME}#txn.t-1.p0", "length": 5}],
    }
    assert (expires_in is None) == (not where), "no clock runs where nobody is the owner"

    reported = dict(line.split("  ", 1) for line in run("txn", "show", NAME, "t-1", *where).out.splitlines())
    reported = {name: value.strip() for name, value in reported.items()}
    assert (reported["state"], reported["lease"], reported["token"]) == ("open", "60.5 s", "query at epoch 3")
    assert (reported["staged"], "reason" in reported, "offset" in reported) == (
        f"{NAME}#txn.t-1.p0 5",
        False,
        False,
    )


def test_abort_ends_it_and_prints_the_reason(run: Run, where: tuple[str, ...]) -> None:
    done = run("txn", "abort", NAME, "t-1", "--reason", "its job is gone", *where)

    assert done.code == 0
    assert "aborted" in done.out
    assert "its job is gone" in done.out
    found = json.loads(run("txn", "show", NAME, "t-1", "--json", *where).out)
    assert (found["state"], found["reason"], found["length"], found["staged"]) == (
        "aborted",
        "its job is gone",
        0,
        [],
    )
    assert json.loads(run("txn", "abort", NAME, "t-1", "--json", *where).out)["reason"] == "its job is gone"


def test_a_committed_one_stays_committed(run: Run, where: tuple[str, ...]) -> None:
    assert json.loads(run("txn", "abort", NAME, "done", "--json", *where).out)["state"] == "committed"


@pytest.mark.parametrize(
    "arguments, hint",
    [((NAME, "none"), "tierlog txn ls"), ((NAME, "a b"), "letters"), (("a//b", "t"), "name")],
)
def test_a_missing_transaction_is_reported_in_one_line(
    run: Run, where: tuple[str, ...], arguments: tuple[str, ...], hint: str
) -> None:
    done = run("txn", "show", *arguments, *where)

    assert (done.code, done.out) == (1, "")
    assert is_one_line(done.err)
    assert hint in done.err


def test_an_open_folder_is_read_and_not_written_to(run: Run, folder: Path) -> None:
    async def list_and_abort() -> None:
        async with tierlog.open_store(folder, containers=4, config=CONFIG) as store:
            await begin(store)
            assert "t-1" in piped(folder, b"", "txn", "ls").out
            refused = piped(folder, b"", "txn", "abort", NAME, "t-1")
            assert refused.code == 1
            assert "--take-over" in refused.err
            assert (await store.transaction_info(NAME, "t-1")).state.value == "open"

    anyio.run(list_and_abort)
    assert run("txn", "abort", NAME, "t-1").code == 0


def test_a_process_aborts_what_a_writer_left_behind(folder: Path) -> None:
    """The command as it is typed, against a service with a zombie."""
    with service(folder, containers=4) as url, tierlog.connect_sync(url) as client:
        client.create_segment(NAME)
        client.begin_transaction(NAME, "t")
        part = client.stage_segment(NAME, "t", "p0")

        done = typed(url, "txn", "abort", NAME, "t")

        assert (done.code, done.err) == (0, "")
        assert refusal(client, part) == "aborted"


def typed(url: str, *arguments: str) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "tierlog", *arguments, "--url", url],
        capture_output=True,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def refusal(client: SyncClient, part: str) -> str:
    with pytest.raises(tierlog.TransactionEnded, match="aborted by hand") as caught:
        client.append(part, b"late")
    return caught.value.state
