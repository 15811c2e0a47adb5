"""The commands about users' tables, on a folder and with ``--url``."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import tierlog
from support.command_line import Done, Run, is_one_line, piped
from support.folders import fingerprint
from support.service import service

NAME = "app/users"
Table = Run
"""Runs ``tierlog table COMMAND NAME ...`` on a folder, or on a service."""


@pytest.fixture(params=["folder", "service"])
def table(request: pytest.FixtureRequest, run: Run, tmp_path: Path) -> Iterator[Table]:
    def call(command: str, *arguments: str) -> Done:
        return run("table", command, NAME, *arguments, *there)

    there: tuple[str, ...] = ()
    if request.param == "folder":
        yield call
    else:
        with service(tmp_path / "served") as url:
            there = ("--url", url)
            yield call


def in_base64(key: bytes, value: bytes | None, version: int) -> dict[str, Any]:
    text = None if value is None else b64encode(value).decode()
    return {"key": b64encode(key).decode(), "value": text, "version": version}


def test_a_tables_life(table: Table, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(b"\x00\xff\n")
    assert (table("create").out, table("create", "--exist-ok").code) == ("", 0)
    assert table("create").code == 1
    ada = int(table("put", "ada", "--data-text", "admin", "--expected-version", "0").out)
    bob = json.loads(table("put", "bob", "--file", str(tmp_path / "value"), "--json").out)["version"]
    assert 0 < ada < bob

    assert table("get", "ada").out == "admin"
    assert table("get", "bob", "--hex").code == 2
    assert table("get", b"bob".hex(), "--hex").out == "00ff0a\n"
    assert json.loads(table("get", "bob", "--json").out) == in_base64(b"bob", b"\x00\xff\n", bob)
    conflict = table("put", "ada", "--data-text", "x", "--expected-version", str(bob))
    assert (conflict.code, is_one_line(conflict.err)) == (1, True)
    assert (
        f"key 'ada' of table '{NAME}' has version {ada}, and the update expects version {bob}" in conflict.err
    )

    removed = int(table("remove", "ada", "--expected-version", str(ada)).out)
    missing = table("get", "ada")
    assert (missing.code, missing.out) == (1, "")
    assert missing.err == f"error: table '{NAME}' has no row of key ada\n"
    changed = json.loads(table("changes", "--since", str(ada), "--json").out)
    assert changed["rows"] == [in_base64(b"ada", None, removed), in_base64(b"bob", b"\x00\xff\n", bob)]
    assert table("changes", "--since", str(changed["version"])).out.split() == [
        "version",
        "change",
        "key",
        "value",
    ]


def test_updates_of_a_writer_are_applied_once(table: Table) -> None:
    table("create")
    once = ("k", "--data-text", "v", "--expected-version", "0", "--writer", "w", "--event-number", "3")
    first = table("put", *once)
    assert first.code == 0
    assert table("put", *once).out == first.out
    assert table("remove", "k", "--writer", "w").code == 2
    assert table("remove", "k", "--writer", "w", "--event-number", "4").code == 0
    assert table("put", *once).out == ""


@pytest.fixture
def stored(folder: Path) -> Path:
    async def make() -> None:
        async with tierlog.open_store(folder, containers=1) as store:
            await store.create_table(NAME)
            table = store.table(NAME)
            for first in (0, 750):
                await table.put_many({b"a/%04d" % number: b"v" for number in range(first, first + 750)})
            await store.flush()
            await table.put_many({b"b\xff\n": b"\x1b[31m" + bytes(100), "bä".encode(): b"x"})
            await store.create_segment("bytes")

    anyio.run(make)
    return folder


def test_keys_are_listed_in_order_by_prefix_and_range(run: Run, stored: Path) -> None:
    before = fingerprint(stored)
    assert run("table", "ls", NAME).out.splitlines() == [
        *(f"a/{number:04d}" for number in range(1500)),
        "bä",
        "b\\xff\\n",
    ]
    assert run("table", "ls", NAME, "a/149", "--start", "a/1495", "--end", "a/1497").out.split() == [
        "a/1495",
        "a/1496",
    ]
    assert run("table", "ls", NAME, "62ff", "--hex").out == "62ff0a\n"
    assert run("table", "ls", NAME, "6", "--hex").code == 2
    assert run("table", "ls", NAME, "none").out == ""
    assert fingerprint(stored) == before


def test_values_are_shown_with_escapes_and_shortened(run: Run, stored: Path) -> None:
    header, row, binary = run("table", "ls", NAME, "b", "--long").out.splitlines()
    assert header.split() == ["version", "bytes", "key", "value"]
    assert row.split()[1:] == ["1", "bä", "x"]
    assert binary.split()[1:3] == ["105", "b\\xff\\n"]
    assert binary.split()[3].startswith("\\x1b[31m\\x00\\x00")
    assert binary.endswith("...")
    (found,) = json.loads(run("table", "ls", NAME, "62ff", "--hex", "--json").out)["rows"]
    assert found["value"] == b64encode(b"\x1b[31m" + bytes(100)).decode()


@pytest.mark.parametrize("command", ["ls", "changes"])
def test_a_list_with_a_limit_goes_on_with_its_token(run: Run, stored: Path, command: str) -> None:
    first = json.loads(run("table", command, NAME, "--limit", "1200", "--json").out)
    assert len(first["rows"]) == 1200
    shown = run("table", command, NAME, "--limit", "1200")
    assert first["token"] in shown.err
    rest = json.loads(run("table", command, NAME, "--token", first["token"], "--json").out)

    assert (len(rest["rows"]), rest["token"]) == (302, None)
    whole = json.loads(run("table", command, NAME, "--json").out)
    assert first["rows"] + rest["rows"] == whole["rows"]


def test_the_next_since_is_printed(run: Run, stored: Path) -> None:
    version = json.loads(run("table", "changes", NAME, "--json").out)["version"]
    done = run("table", "changes", NAME)

    assert done.err == f"nothing more; later changes: --since {version}\n"
    assert len(done.out.splitlines()) == 1503


def test_a_value_comes_from_stdin_or_a_file_and_has_a_limit(folder: Path, stored: Path, run: Run) -> None:
    assert piped(folder, b"from\nstdin", "table", "put", NAME, "k").code == 0
    assert run("table", "get", NAME, "k").out == "from\nstdin"
    (folder.parent / "large").write_bytes(bytes((1 << 20) + 1))
    large = run("table", "put", NAME, "k", "--file", "large")
    assert (large.code, "at most 1048576 bytes" in large.err) == (1, True)


@pytest.mark.parametrize(
    "arguments, hint",
    [
        (("table", "get", "none", "k"), "tierlog table create"),
        (("table", "put", "bytes", "k", "--data-text", "v"), "`tierlog segment` has"),
        (("segment", "read", NAME), "`tierlog table` has"),
        (("segment", "append", NAME, "--data-text", "v"), "`tierlog table` has"),
        (("table", "changes", NAME, "--since", "999999"), "leave out --since"),
        (("table", "get", NAME, ""), "1 to 8192"),
    ],
)
def test_errors_say_what_to_do(run: Run, stored: Path, arguments: tuple[str, ...], hint: str) -> None:
    done = run(*arguments)

    assert (done.code, done.out, is_one_line(done.err)) == (1, "", True)
    assert hint in done.err


def test_commands_for_chunks_and_bytes_refuse_a_table(run: Run) -> None:
    assert run("table", "create", NAME).code == 0
    assert run("segment", "create", "bytes").code == 0
    assert run("segment", "append", "bytes", "--data-text", "x").code == 0
    for arguments in (
        ("chunks", "verify", NAME),
        ("chunks", "layout", NAME),
        ("chunks", "defrag", NAME),
        ("export", NAME),
        ("segment", "read", NAME),
        ("segment", "create", NAME, "--exist-ok"),
    ):
        refused = run(*arguments)
        assert (refused.code, refused.out, is_one_line(refused.err)) == (1, "", True), arguments
        assert "is a table, which has rows and no bytes" in refused.err, arguments
        assert ("tierlog tables verify" if arguments[1] == "verify" else "tierlog table") in refused.err
    assert run("chunks", "verify").code == 0
    assert [row["segment"] for row in json.loads(run("chunks", "defrag", "--all", "--json").out)] == ["bytes"]

    lines = {line.split()[-1]: line for line in run("segment", "ls", "--long").out.splitlines()}
    assert "open table" in lines[NAME]
    assert "table" not in lines["bytes"]
    shown = run("segment", "info", NAME).out
    assert "length" not in shown
    assert "is table" in shown


@pytest.mark.usefixtures("stored")
def test_what_a_sealed_table_can_do_is_said_once(run: Run) -> None:
    run("segment", "seal", NAME)
    refused = run("table", "put", NAME, "k", "--data-text", "v")
    assert (refused.code, refused.err) == (
        1,
        f"error: table '{NAME}' is sealed: it can be read and deleted\n",
    )
