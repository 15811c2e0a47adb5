"""The command line as a process: Ctrl-C, readers that go away, what it imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from support.command_line import NAME, Run, command, is_one_line, make_store, spawn
from tierlog.actors.store.read_only import open_reader


@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_ends_a_tail_quietly(folder: Path, times: int) -> None:
    """Also for the impatient: what follows the first one does not tear the end that it began."""
    make_store(folder)
    with spawn(folder, "segment", "tail", NAME, "--offset", "-5") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.read(5) == b"tail\n"
        for _ in range(times):
            tail.send_signal(signal.SIGINT)

        assert tail.wait() == 130
        assert tail.stderr.read() == b""


def test_a_tail_from_beyond_the_end_says_that_it_waits(folder: Path) -> None:
    make_store(folder)
    with spawn(folder, "segment", "tail", NAME, "--offset", "99") as tail:
        assert tail.stderr is not None
        assert tail.stderr.readline() == b"waiting for offset 99: the segment ends at 13 now\n"
        tail.send_signal(signal.SIGINT)

        assert tail.wait() == 130


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_waiting_append_and_keeps_acked_bytes(
    folder: Path, run: Run, number: signal.Signals, code: int
) -> None:
    make_store(folder)

    async def wait_for_line() -> None:
        async with open_reader(folder) as view:
            async for block in view.tail(NAME, 13):
                assert block == b"a line\n"
                return

    with spawn(folder, "segment", "append", NAME, "--lines") as append:
        assert append.stdin is not None
        assert append.stderr is not None
        append.stdin.write(b"a line\nhalf of")
        append.stdin.flush()
        anyio.run(wait_for_line)
        append.send_signal(number)

        assert append.wait() == code
        assert append.stderr.read().startswith(b"interrupted: ")

    assert run("segment", "read", NAME, "--offset", "13").out == "a line\n"
    assert "not open anywhere" in run("doctor").out


def test_a_full_stdout_does_not_hide_where_the_bytes_were_appended(folder: Path) -> None:
    make_store(folder)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command(folder, "segment", "append", NAME, "--data-text", "x"),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr.endswith(b"No space left on device; but the bytes were appended, offset 13\n")
    assert is_one_line(done.stderr.decode())


def test_a_closed_stdin_is_named(folder: Path) -> None:
    make_store(folder)
    append = command(folder, "segment", "append", NAME)
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *append], capture_output=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith(b"error: stdin is closed: redirect it")


def test_a_read_ends_quietly_when_its_reader_closes_the_pipe(folder: Path, run: Run, tmp_path: Path) -> None:
    make_store(folder)
    (tmp_path / "big").write_bytes(bytes(4 << 20))
    run("segment", "append", NAME, "--file", "big")

    with spawn(folder, "segment", "read", NAME) as read:
        assert read.stdout is not None
        assert read.stderr is not None
        assert read.stdout.read(7) == b"flushed"
        read.stdout.close()

        assert read.wait() == 141
        assert read.stderr.read() == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ("segment", "ls"),
        ("doctor", "--json"),
        pytest.param(("segment", "ls", "--long"), marks=pytest.mark.extended),
        pytest.param(("segment", "info", NAME), marks=pytest.mark.extended),
    ],
)
def test_a_listing_ends_quietly_if_its_reader_is_gone(folder: Path, arguments: tuple[str, ...]) -> None:
    make_store(folder)
    unread, output = os.pipe()
    os.close(unread)
    done = subprocess.run(command(folder, *arguments), stdout=output, stderr=subprocess.PIPE, check=False)
    os.close(output)

    assert (done.returncode, done.stderr) == (141, b"")


def test_the_installed_program_prints_its_version_and_its_help(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("tierlog")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path)
    shown = subprocess.run([program], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert version.stdout.startswith("tierlog ")
    lines = [line.strip() for line in shown.stdout.splitlines()]
    first = lines.index("tierlog segment create app/events")
    assert lines[first + 2] == "tierlog segment read app/events", "each can be copied"
    assert "\x1b[" not in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_help_imports_none_of_the_engine(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom tierlog.actors.cli import main\nmain(['--help'])\nprint(*sys.modules, "
        "file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    loaded = set(done.stderr.split())

    assert "tierlog.actors.cli.app" in loaded
    assert (
        loaded
        & {
            "anyio",
            "attrs",
            "tierlog.actors.store.opening",
            "tierlog.actors.store.store",
            "tierlog.actors.store.read_only",
        }
        == set()
    )
