"""Output that cannot be written, and text of strangers that a terminal would obey."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import tierlog
from support.command_line import NAME, Run, command, is_one_line, make_store
from support.patience import scaled
from tierlog.actors.cli.output import print_json, print_lines, print_table
from tierlog.actors.cli.running import print_error
from tierlog.actors.telemetry.printable import printable

FULL = Path("/dev/full")
HOSTILE = "a\x1b]0;title\x07\x9b2Jb\u202ec"
ESCAPED = r"a\x1b]0;title\x07\x9b2Jb\u202ec"


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_stdout_without_room_is_one_line_and_exit_code_1_for_every_kind_of_output(folder: Path) -> None:
    make_store(folder)
    calls = (
        ("segment", "ls"),
        ("segment", "ls", "--long"),
        ("segment", "read", NAME),
        ("segment", "info", NAME, "--json"),
        ("doctor",),
    )
    with FULL.open("wb") as full:
        processes = [
            subprocess.Popen(command(folder, *call), stdout=full, stderr=subprocess.PIPE) for call in calls
        ] + [
            subprocess.Popen(
                [sys.executable, "-m", "tierlog", option], stdout=full, stderr=subprocess.PIPE, cwd=folder
            )
            for option in ("--help", "--version")
        ]
    for process in processes:
        _, err = process.communicate(timeout=scaled(60))
        assert (process.returncode, err) == (1, b"error: stdout: No space left on device\n"), process.args


def test_a_closed_stdout_is_an_error_and_its_number_goes_to_no_file_of_the_store(folder: Path) -> None:
    make_store(folder)
    call = command(folder, "segment", "read", NAME)
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *call], stderr=subprocess.PIPE, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (1, "error: stdout: Bad file descriptor\n")


def test_an_output_file_without_room_is_named(folder: Path, run: Run) -> None:
    make_store(folder)
    done = run("segment", "read", NAME, "--output", os.fspath(FULL))

    assert (done.code, done.err) == (1, "error: /dev/full: No space left on device\n")


def test_control_characters_are_escaped_in_lines_tables_and_errors(
    capfd: pytest.CaptureFixture[str],
) -> None:
    print_lines([HOSTILE])
    print_table(("name",), [(HOSTILE,)])
    print_error(HOSTILE)
    out, err = capfd.readouterr()

    assert [line.rstrip() for line in out.splitlines()] == [ESCAPED, "name", ESCAPED]
    assert err == f"error: {ESCAPED}\n"


def test_json_escapes_control_characters_and_reads_back_as_the_same_text(
    capfd: pytest.CaptureFixture[str],
) -> None:
    value = {"reason": HOSTILE + "\x7f\ud800 ü"}
    print_json(value)
    out = capfd.readouterr().out

    assert json.loads(out) == value
    assert printable(out.replace("\n", "")) == out.replace("\n", "")


def test_what_the_encoding_of_stdout_lacks_is_escaped(folder: Path, run: Run) -> None:
    name = "ün字\U00020000"
    assert run("segment", "create", name).code == 0
    calls = {
        ("segment", "ls"): r"\xfcn\u5b57\U00020000",
        ("segment", "ls", "--long"): r"\xfcn\u5b57\U00020000",
        ("segment", "info", name): r"\xfcn\u5b57\U00020000",
        ("segment", "info", name, "--json"): r"\u00fcn\u5b57\ud840\udc00",
    }
    processes = [
        subprocess.Popen(
            command(folder, *call),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
            text=True,
        )
        for call in calls
    ]
    for process, shown in zip(processes, calls.values(), strict=True):
        out, _ = process.communicate(timeout=scaled(60))
        assert (process.returncode, shown in out) == (0, True), out


def test_the_reason_of_an_abort_cannot_send_commands_to_the_terminal(folder: Path, run: Run) -> None:
    async def abort() -> None:
        async with tierlog.open_store(folder, containers=1) as store:
            await store.create_segment(NAME)
            await store.begin_transaction(NAME, "run-1")
            await store.abort_transaction(NAME, "run-1", reason=HOSTILE)

    anyio.run(abort)

    assert ESCAPED in run("txn", "show", NAME, "run-1").out


def test_an_unknown_command_with_control_characters_is_an_escaped_error(run: Run) -> None:
    done = run("segment", "\x1b[31m")

    assert done.code == 2
    assert is_one_line(done.err)
    assert "\x1b" not in done.err
