"""What `tierlog bookkeeper install` says, with a program in Java's place and without a mirror that has the
files. ``tests/storage_backends/ledgers/test_install.py`` has what it does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.command_line import Run, is_one_line


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"21\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.fixture
def endless() -> Iterator[str]:
    """A mirror whose files do not end while they are read."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(ConnectionError):
                for _ in range(1_600):
                    self.wfile.write(bytes(65_536))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_mirror_with_other_files_is_to_be_replaced(run: Run, tmp_path: Path, endless: str) -> None:
    done = run("bookkeeper", "install", f"--into={tmp_path / 'into'}", f"--mirror={endless}")
    assert (done.code, done.out) == (1, "")
    assert is_one_line(done.err)
    assert "bytes that it should: use another mirror (--mirror)" in done.err
    # It is about no store.
    assert "doctor" not in done.err


def test_a_mirror_that_does_not_answer_leaves_nothing_but_the_lock(run: Run, tmp_path: Path) -> None:
    done = run("bookkeeper", "install", f"--into={tmp_path / 'into'}", "--mirror=http://127.0.0.1:1")
    assert (done.code, is_one_line(done.err)) == (1, True)
    assert [path.name for path in (tmp_path / "into").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "mirror",
    [
        "repo1.maven.org/maven2",
        "/srv/maven",
        "file:///srv/maven",
        "ftp://host/maven",
        "https://",
        "https:///maven2",
        "http://host:port/maven",
        "http://host:99999/maven",
        "http://[::1/maven",
        "http://host/maven?x=1",
        "http://ho st/maven",
        "http://user:secret@host:no/maven",
    ],
)
def test_a_malformed_mirror_is_refused_with_how_to_write_it(run: Run, tmp_path: Path, mirror: str) -> None:
    done = run("bookkeeper", "install", f"--into={tmp_path / 'into'}", f"--mirror={mirror}")
    assert (done.code, done.out) == (2, "")
    assert "write https://HOST/PATH, such as https://repo1.maven.org/maven2" in " ".join(done.err.split())
    assert "secret" not in done.err
    assert not (tmp_path / "into").exists()


def test_an_installation_says_that_it_waits_for_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "into"
    folder.mkdir(mode=0o755)
    arguments = ["bookkeeper", "install", f"--into={folder}", "--mirror=http://127.0.0.1:1"]
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = subprocess.Popen(
            [sys.executable, "-m", "tierlog", *arguments], stderr=subprocess.PIPE, text=True
        )
        try:
            assert started.stderr is not None
            assert started.stderr.readline() == f"waiting for another installation into {folder}\n"
            fcntl.flock(lock, fcntl.LOCK_UN)
            _, said = started.communicate()
        finally:
            started.kill()
            started.wait()
    assert "http://127.0.0.1:1/" in said
