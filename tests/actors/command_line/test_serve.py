"""What `tierlog serve` refuses and prints, without a service."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.command_line import Run, is_one_line, piped
from tierlog.actors.cli.serve import _announce
from tierlog.actors.gateway.server.listener import ServerAddress
from tierlog.actors.supervisor.supervisor import Supervisor
from tierlog.storage_backends.base.errors import StoreMismatch


def test_ports_outside_the_range_are_refused_in_one_line(folder: Path) -> None:
    done = piped(folder, b"", "serve", "--listen=127.0.0.1:0", "--host-port=65535", "--hosts=2")

    assert (done.code, done.out) == (1, "")
    assert is_one_line(done.err)
    assert "--host-port 65534" in done.err


@pytest.mark.parametrize(
    "phases, line",
    [
        (("serving", "serving"), "serving 1 container on 2 hosts at http://127.0.0.1:8470\n"),
        (("serving", "down"), "serving 1 container on 1 of 2 hosts at http://127.0.0.1:8470\n"),
    ],
)
def test_only_hosts_that_serve_are_counted(
    capsys: pytest.CaptureFixture[str], phases: tuple[str, ...], line: str
) -> None:
    document: dict[str, Any] = {
        "containers": [{"phase": "serving"}],
        "hosts": [{"phase": phase} for phase in phases],
    }
    view = SimpleNamespace(document=lambda: document)

    _announce(ServerAddress("127.0.0.1", 8470), cast(Supervisor, SimpleNamespace(view=lambda: view)))

    assert capsys.readouterr().out == line


def test_a_host_that_joins_can_adopt(run: Run, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As errors advise: in a service on several machines no supervisor starts it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    asked: list[bool] = []

    @asynccontextmanager
    async def refuse(*_: object, adopt: bool, **__: object) -> AsyncIterator[None]:
        asked.append(adopt)
        raise StoreMismatch("it was asked")
        yield

    monkeypatch.setattr("tierlog.actors.host.main.open_host", refuse)
    command = ("host", "--join", "s3://bucket/store", "--listen", "127.0.0.1:0")
    assert "it was asked" in run(*command, "--adopt").err
    assert "it was asked" in run(*command).err
    assert asked == [True, False]


def test_a_service_is_not_started_with_a_chunk_cache_among_its_files(folder: Path) -> None:
    config = folder.parent / "tierlog.toml"
    config.write_text('chunk_cache.path = "wal"\n')
    done = piped(folder, b"", "serve", "--listen=127.0.0.1:0", f"--config={config}")
    assert (done.code, "chunk_cache.path: 'wal' is the folder" in done.err) == (1, True)
    assert not folder.exists()


def test_a_store_on_bookkeeper_names_the_command_that_installs_what_is_missing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{java.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TIERLOG_BOOKKEEPER_FOLDER", str(tmp_path / "nothing"))
    done = run("serve", "bookkeeper://127.0.0.1:1/stores/first", "--listen=127.0.0.1:0")
    assert (done.code, done.out) == (1, "")
    assert is_one_line(done.err)
    assert "run `tierlog bookkeeper install`" in done.err


@pytest.mark.parametrize("command", [["doctor"], ["segment", "ls"], ["segment", "create", "app/events"]])
def test_other_commands_take_the_service_of_a_store_on_bookkeeper(run: Run, command: list[str]) -> None:
    done = run(*command, "--data=bookkeeper://zk1:2181/stores/first")
    assert (done.code, done.out) == (1, "")
    assert "other commands take its service, --url" in done.err


def test_a_host_without_a_store_says_what_is_missing(run: Run) -> None:
    missing = run("host")
    assert missing.code == 2
    assert "Missing option '--join'" in " ".join(missing.err.replace("│", " ").split())


def test_help_says_where_chunks_are_and_which_commands_log(run: Run) -> None:
    def help_of(*command: str) -> str:
        return " ".join(run(*command, "--help").out.replace("│", " ").split())

    assert "--join" in help_of("host").partition("Options")[2]
    supervise = help_of("supervise")
    assert "[default: (lts/ in the data folder)]" not in supervise
    assert "Before it is active, Ctrl-C ends it with 130" in supervise
    for command in (("serve",), ("supervise",), ("host", "run")):
        assert "default: info for" in help_of(*command), command
