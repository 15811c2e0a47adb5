"""The command line as tests use it: in this process, or as one of its own."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

import anyio
import pytest
import typer

import tierlog
from tierlog.actors.cli import main

NAME = "app/events"


class Done:
    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out.decode()
        self.err = err.decode()

    def __repr__(self) -> str:
        return f"exit {self.code}\nstdout: {self.out}\nstderr: {self.err}"


Run = Callable[..., Done]


_commands_of = cache(typer.main.get_command)
"""The tree of all commands; to build it costs more than most of them."""


@contextmanager
def in_this_process(capture: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """The command line without a process of its own; ``capture``: of file descriptors, in bytes."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    root, own = logging.getLogger(), logging.getLogger("tierlog")
    handlers, levels = list(root.handlers), (root.level, own.level)

    def call(*arguments: str) -> Done:
        code = main(list(arguments))
        return Done(code, *capture.readouterr())

    with mock.patch.object(typer.main, "get_command", _commands_of):
        yield call
    for number, handler in before.items():
        signal.signal(number, handler)
    # A service logs to what is stderr during this test alone.
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tierlog", *arguments, "--data", str(folder)]


def spawn(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command(folder, *arguments), stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder.parent
    )


def piped(folder: Path, data: bytes, *arguments: str) -> Done:
    done = subprocess.run(
        command(folder, *arguments), input=data, capture_output=True, cwd=folder.parent, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def make_store(folder: Path) -> None:
    """One container: a segment with a flushed chunk and an unflushed tail."""

    async def make() -> None:
        async with tierlog.open_store(folder, containers=1) as store:
            await store.create_segment(NAME)
            await store.append(NAME, b"flushed ")
            await store.update_attributes(NAME, [tierlog.AttributeUpdate("colour", 7)])
            await store.flush()
            await store.append(NAME, b"tail\n")

    anyio.run(make)


def is_one_line(text: str) -> bool:
    return text.startswith("error: ") and text.count("\n") == 1 and text.endswith("\n")
