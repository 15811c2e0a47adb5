"""The segment commands with ``--url``: the same words, to a service instead of a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Run, is_one_line
from support.patience import scaled
from support.service import service

NAME = "app/events"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with service(tmp_path / "served") as url:
        yield url


def test_a_segments_life(run: Run, url: str, folder: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\ntwo\n")
    there = ("--url", url)

    assert run("segment", "create", NAME, *there).code == 0
    assert run("segment", "append", NAME, "--data-text", "hello\n", *there).out == "0\n"
    numbered = ("--file", str(lines), "--lines", "--writer", "w", "--event-number", "1")
    assert run("segment", "append", NAME, *numbered, *there).out == "6\n"
    assert (
        run("segment", "append", NAME, *numbered, *there).out
        == run("segment", "append", NAME, *numbered, *there).out
    )
    assert run("segment", "read", NAME, *there).out == "hello\none\ntwo\n"
    assert run("segment", "ls", *there).out == f"{NAME}\n"
    assert json.loads(run("segment", "info", NAME, "--json", *there).out)["length"] == 14
    assert run("segment", "truncate", NAME, "6", *there).code == 0
    assert run("segment", "seal", NAME, *there).out == "14\n"
    assert run("segment", "tail", NAME, "--offset", "-4", *there).out == "two\n"
    assert run("segment", "create", "app/all", *there).code == 0
    assert run("segment", "delete", NAME, *there).code == 0
    assert run("segment", "ls", *there).out == "app/all\n"
    assert not folder.exists(), "no folder is touched"


def test_merge(run: Run, url: str) -> None:
    for name in ("t", "t#1"):
        run("segment", "create", name, "--url", url)
        run("segment", "append", name, "--data-text", name, "--url", url)
    run("segment", "seal", "t#1", "--url", url)

    assert run("segment", "merge", "t", "t#1", "--url", url).out == "1\n"
    assert run("segment", "read", "t", "--url", url).out == "tt#1"


def test_the_same_errors_in_one_line(run: Run, url: str) -> None:
    done = run("segment", "append", "none", "--data-text", "x", "--url", url)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert "segment create" in done.err


@pytest.mark.parametrize(
    "bad, hint", [("nonsense", "http://127.0.0.1"), ("http://127.0.0.1:1", "no tierlog server answers")]
)
def test_a_url_without_a_service(run: Run, bad: str, hint: str) -> None:
    done = run("segment", "ls", "--url", bad)

    assert done.code == 1
    assert hint in done.err


def test_a_service_has_its_own_owners(run: Run, url: str) -> None:
    assert "--take-over is for a data folder" in run("segment", "seal", NAME, "--take-over", "--url", url).err


def test_a_configuration_in_the_environment_is_harmless(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_CONFIG", "nowhere.toml")

    assert run("segment", "create", NAME, "--url", url).code == 0


def serve_failed(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code and stderr of a service that does not start."""
    command = [sys.executable, "-m", "tierlog", "serve", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=scaled(60)
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("address", ["1:2:3", "127.0.0.1:http", "127.0.0.1:65536"])
def test_serve_refuses_a_malformed_address(tmp_path: Path, address: str) -> None:
    code, shown = serve_failed(str(tmp_path / "new"), "--listen", address)
    assert (code, is_one_line(shown)) == (1, True)
    assert shown.startswith(f"error: --listen: {address!r} is not ADDRESS:PORT, such as 127.0.0.1:8470,")


def test_serve_takes_its_folder_either_way_and_once(tmp_path: Path) -> None:
    taken = tmp_path / "a file"
    taken.write_bytes(b"")
    elsewhere = {**os.environ, "TIERLOG_DATA": str(tmp_path / "elsewhere")}

    def serve(*arguments: str) -> tuple[int, str]:
        return serve_failed(*arguments, environment=elsewhere)

    typed = serve(str(taken))
    twice = serve("one", "--data", "two")
    bucket = serve("--data", "s3://events/app")

    assert typed[0] == 1
    assert str(taken) in typed[1], "what is typed beats the environment"
    assert typed[1] == f"error: {taken} is a file: name the data folder of a store\n"
    assert serve("--data", str(taken)) == typed
    assert twice == (1, "error: the store is given twice, as one and as --data two: leave one out\n")
    assert bucket[0] == 1
    assert "`tierlog serve s3://events/app`" in bucket[1]
