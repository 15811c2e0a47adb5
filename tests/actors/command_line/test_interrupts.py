"""Ctrl-C, wherever it strikes: in a thread's start, in a finalizer, twice, before a command has begun.
SIGTERM and SIGHUP, which end a command in the same way."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from support.patience import scaled

PRELUDE = """
import os, signal, sys, threading
import anyio
from tierlog.actors.cli.interrupts import end_at_once
from tierlog.actors.cli.running import execute

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
"""


END = """
import typer
try:
    execute(command)
except typer.Exit as exit:
    sys.exit(exit.exit_code)
"""


def started(command: str) -> list[str]:
    """A process that carries out ``command``, which this text defines."""
    return [sys.executable, "-c", PRELUDE + command + END]


def run(command: str) -> tuple[int, bytes, bytes]:
    done = subprocess.run(started(command), capture_output=True, timeout=scaled(20), check=False)
    return done.returncode, done.stdout, done.stderr


def test_an_interrupted_command_cleans_up_what_it_owns() -> None:
    code, out, err = run(
        """
async def command():
    try:
        interrupt()
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.01)
            print("in order")
"""
    )
    assert (code, out, err) == (130, b"in order\n", b"")


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_ends_in_order_when_a_service_manager_or_a_closed_terminal_ends_it(
    number: signal.Signals, code: int
) -> None:
    """They ended it like a crash: the store was not closed, and `segment append` did not say what it had
    appended."""
    command = f"""
signal.signal({number:d}, signal.SIG_DFL)  # Whoever runs the tests may ignore it, as `nohup` does.

async def command():
    try:
        os.kill(os.getpid(), {number:d})
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.01)
            print("in order")
"""
    assert run(command) == (code, b"in order\n", b"")


def test_a_closed_terminal_does_not_end_a_command_that_nohup_started() -> None:
    command = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)

async def command():
    os.kill(os.getpid(), signal.SIGHUP)
    await anyio.sleep(0)
    print("goes on")
"""
    assert run(command) == (0, b"goes on\n", b"")


def test_an_interrupt_while_a_thread_starts_corrupts_nothing() -> None:
    """It comes while the starter waits for the new thread: an exception there would leave a thread that
    nobody ends."""
    code, out, err = run(
        """
from anyio.to_thread import run_sync

class Starting(threading.Event):
    def wait(self, timeout=None):
        interrupt()
        return super().wait(timeout)

threading.Event = Starting

async def command():
    try:
        await run_sync(int)
        await anyio.sleep_forever()
    finally:
        print("in order")
"""
    )
    assert (code, out, err) == (130, b"in order\n", b"")


def test_an_interrupt_in_a_finalizer_is_not_lost() -> None:
    """An exception there would be passed over."""
    code, out, err = run(
        """
class Left:
    def __del__(self):
        interrupt()

async def command():
    Left()
    await anyio.sleep_forever()
"""
    )
    assert (code, out, err) == (130, b"", b"")


def test_a_second_interrupt_ends_a_command_whose_closing_hangs() -> None:
    code, out, err = run(
        """
async def command():
    try:
        interrupt()
        await anyio.sleep_forever()
    finally:
        print("closing", flush=True)
        interrupt()
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()
"""
    )
    assert (code, out, err) == (130, b"closing\n", b"")


def test_an_interrupt_before_the_loop_runs_starts_no_command() -> None:
    code, out, err = run(
        """
import asyncio
make = asyncio.new_event_loop

def interrupted():
    interrupt()
    return make()

asyncio.events.new_event_loop = interrupted

async def command():
    await anyio.sleep(0)
    print("has begun")
"""
    )
    assert (code, out, err) == (130, b"", b"")


def test_the_loop_ends_if_an_interrupt_follows_a_command_with_its_own_signal_handlers() -> None:
    """Such a receiver leaves Python's own handler behind."""
    code, out, err = run(
        """
async def left_open():
    try:
        yield
    finally:
        interrupt()
        print("closed")

async def command():
    with anyio.open_signal_receiver(signal.SIGINT):
        command.left = left_open()
        await anext(command.left)
"""
    )
    assert (code, out, err) == (0, b"closed\n", b"")


def test_a_reading_command_ends_at_once_while_its_output_blocks() -> None:
    """Nobody reads the pipe, so the write does not return."""
    program = """
async def command():
    end_at_once()
    threading.Timer(0.2, interrupt).start()
    while True:
        os.write(1, bytes(1 << 20))
"""
    with subprocess.Popen(started(program), stdout=subprocess.PIPE) as process:
        assert process.wait(timeout=scaled(20)) == 130


@pytest.mark.parametrize("module", ["signal", "typing", "typer"])
def test_an_interrupt_while_the_command_line_is_imported_ends_it_without_a_traceback(module: str) -> None:
    """What comes before is Python's: until `site` and the installer's script are loaded, which takes about 50
    ms, no code of a package runs. The traceback of that time cannot be avoided, unless a shell script starts
    Python with SIGINT ignored, which would lose the Ctrl-C."""
    program = f"""
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None, number=signal.SIGINT):
        if name == {module!r}:
            os.kill(os.getpid(), number)

sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["tierlog", "--version"]
from tierlog.__main__ import main
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=scaled(20), check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
