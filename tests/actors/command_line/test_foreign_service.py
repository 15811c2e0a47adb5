"""Answers of a server that is no tierlog service: one line on stderr, whatever they are."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.command_line import Run, is_one_line
from support.service import service
from tierlog.actors.cli import running
from tierlog.actors.gateway.client import attempts

COMMANDS = (("status",), ("roll",), ("host", "start", "host-0"), ("container", "open", "0"))
ANSWERS = {
    "another document": b"{}",
    "no object": b"[1]",
    "no JSON": b"<html>",
    "deep nesting": b"[" * 100_000,
    "members of other types": json.dumps({"hosts": 1, "containers": "x", "ready": "yes"}).encode(),
    "no hosts": json.dumps(
        {
            "folder": "",
            "pid": 1,
            "term": 1,
            "ready": True,
            "stopping": False,
            "failovers": 0,
            "failover_seconds": [],
            "hosts": [],
            "containers": [],
        }
    ).encode(),
}


@pytest.fixture(params=ANSWERS)
def foreign(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A server's URL, and what it answers to everything."""
    body = ANSWERS[request.param]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", request.param
        server.shutdown()
        thread.join()


def test_an_answer_of_another_server_is_one_line(run: Run, foreign: tuple[str, str]) -> None:
    url, answer = foreign
    commands = COMMANDS[2:] if answer == "no hosts" else COMMANDS
    for command in commands:
        done = run(*command, "--url", url)
        assert (done.code, done.out) == (1, ""), command
        assert is_one_line(done.err), done.err


def test_the_other_scheme_is_advised_in_one_line(run: Run, folder: Path) -> None:
    with service(folder) as url:
        secure = url.replace("http://", "https://")
        for command in (("status",), ("segment", "ls")):
            done = run(*command, "--url", secure)
            assert (done.code, is_one_line(done.err)) == (1, True), done.err
            assert f"it does not speak TLS: use {url}" in done.err


@pytest.mark.parametrize("answer", [b"", b"\x15\x03\x03\x00\x02\x02\x28"])
def test_https_is_advised_where_a_server_with_tls_answers(run: Run, answer: bytes) -> None:
    """It ends the connection, or sends an alert first."""

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted:
                accepted.recv(65536)
                accepted.sendall(answer)
                accepted.shutdown(socket.SHUT_WR)
                while accepted.recv(65536):
                    pass  # closing it with unread bytes would reset the connection

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        done = run("status", "--url", f"http://{place}")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()

    assert (done.code, is_one_line(done.err)) == (1, True), done.err
    assert f"if it speaks TLS, use https://{place}" in done.err


@pytest.mark.parametrize("arguments", [("segment", "ls"), ("status",)])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_command_says_on_a_terminal_that_it_waits_for_a_service(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], is_terminal: bool
) -> None:
    """A client tries for five seconds, in which nothing was shown. Scripts get the error alone."""
    monkeypatch.setattr(running, "_NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(attempts, "OPENING_SECONDS", 0.1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # Nobody listens.
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        done = run(*arguments, "--url", url)

    *notices, error = done.err.splitlines(keepends=True)
    assert done.code == 1
    assert notices == ([f"waiting for {url}: no answer yet\n"] if is_terminal else [])
    assert is_one_line(error)
