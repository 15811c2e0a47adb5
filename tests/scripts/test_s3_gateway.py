"""The S3 gateway is built once for each version; a message says what is missing, or why it does not start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import s3_gateway
from s3_gateway import NoGateway, S3Gateway, find_gateway

from support.patience import scaled

LINE = "mod github.com/versity/versitygw v1.8.0 h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc="


def make_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def go(folder: Path, install: str = "echo built >$GOBIN/versitygw", line: str = LINE) -> dict[str, str]:
    """An environment with a Go that notes each build."""
    text = f'if [ "$1" = version ]; then echo "{line}"; else echo >>{folder}/builds; {install}; fi'
    make_program(folder / "bin" / "go", text)
    path = f"{folder / 'bin'}{os.pathsep}{os.defpath}"
    return {"PATH": path, "XDG_CACHE_HOME": str(folder / "cache")}


def builds(folder: Path) -> int:
    return len((folder / "builds").read_text().splitlines())


def test_it_is_built_once_into_the_cache_folder_and_nothing_else_is_left(tmp_path: Path) -> None:
    environment = go(tmp_path)
    found = find_gateway(environment)

    assert found.read_text() == "built\n"
    assert find_gateway(environment) == found
    assert builds(tmp_path) == 1
    assert {path.name for path in found.parent.iterdir()} == {"versitygw-v1.8.0", "versitygw.lock"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove everything")
def test_a_compiler_that_go_has_fetched_is_not_left(tmp_path: Path) -> None:
    fetch = "mkdir -p ${GOMODCACHE:?}/toolchain; echo go >$GOMODCACHE/toolchain/go; chmod -R a-w $GOMODCACHE"
    found = find_gateway(go(tmp_path, f"{fetch}; echo built >$GOBIN/versitygw"))

    assert {path.name for path in found.parent.iterdir()} == {"versitygw-v1.8.0", "versitygw.lock"}


def test_of_processes_that_need_it_at_once_one_builds_it_for_all(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    environment = go(tmp_path, f"read line <{tmp_path}/gate; echo built >$GOBIN/versitygw")
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(find_gateway(environment))) for _ in range(3)]
    for thread in threads:
        thread.start()
    (tmp_path / "gate").write_text("go on\n")
    for thread in threads:
        thread.join()

    assert len(set(found)) == 1
    assert len(found) == 3
    assert builds(tmp_path) == 1


def test_without_go_one_on_path_serves(tmp_path: Path) -> None:
    program = make_program(tmp_path / "versitygw", "exit")

    assert find_gateway({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}) == program


@pytest.mark.parametrize(
    ("install", "line", "reason"),
    [
        ("echo no network >&2; exit 1", LINE, r"versitygw@v1.8.0` failed: no network"),
        ("echo built >$GOBIN/versitygw", LINE.replace("h1:au", "h1:xx"), "another checksum than h1:au"),
        ("echo built >$GOBIN/versitygw", LINE.replace("1.8.0", "1.8.1"), "another checksum than h1:au"),
        ("echo built >$GOBIN/versitygw", "nothing", "another checksum than h1:au"),
        ("sleep 600", LINE, r"took longer than 0.1 s"),
    ],
)
def test_a_build_that_fails_says_why_and_leaves_nothing(
    install: str, line: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in install:
        monkeypatch.setattr(s3_gateway, "_BUILD_SECONDS", 0.1)
    with pytest.raises(NoGateway, match=reason):
        find_gateway(go(tmp_path, install, line))
    assert [path.name for path in (tmp_path / "cache" / "tierlog").iterdir()] == ["versitygw.lock"]


def test_without_go_and_gateway_the_reason_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoGateway, match="built with Go, and there is no `go` on PATH"):
        find_gateway({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})


def test_a_gateway_that_ends_is_reported_with_its_last_line(tmp_path: Path) -> None:
    program = make_program(tmp_path / "versitygw", "echo starting; echo no such option >&2; exit 1")
    gateway = S3Gateway([program], tmp_path / "data", address="127.0.0.1", port=1)

    with pytest.raises(NoGateway, match=r"does not answer at .*:1; its last line is: no such option"):
        gateway.start()
    assert gateway.process is not None
    assert gateway.process.returncode == 1


def test_as_a_program_it_serves_a_folder_until_it_is_interrupted(tmp_path: Path) -> None:
    """And prints what another terminal needs."""
    listen = "socket.create_server((host, int(port)))"
    text = f"import signal, socket, sys\nhost, port = sys.argv[3].split(':')\ns = {listen}\nsignal.pause()"
    (tmp_path / "listens.py").write_text(text)
    make_program(tmp_path / "versitygw", f'exec {sys.executable} {tmp_path}/listens.py "$@"')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, s3_gateway.__file__, "--serve", str(tmp_path / "data"), f"--port={port}"],
        env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(6)]
        assert f"export AWS_ENDPOINT_URL_S3=http://127.0.0.1:{port}\n" in printed
        assert printed[-1] == "tierlog serve s3://chunks/my-store\n"
        assert (tmp_path / "data" / "objects" / "chunks").is_dir()
        process.send_signal(signal.SIGTERM)
        assert process.wait(scaled(30)) == 0
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=scaled(5)):
        pass
