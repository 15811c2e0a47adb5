"""The quickstart proves what it says, and its judge is not blind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quickstart_parts.checking import committed

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "quickstart.py"
LIMIT = 6_000_000
"""Several times what the cache holds, so that segments are read from chunks."""
SETTINGS = ("--limit", str(LIMIT), "--segments", "3")

pytestmark = pytest.mark.timeout(120)


def quickstart(*arguments: str | Path, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"} | ({"TMPDIR": str(temporary)} if temporary else {})
    command = [sys.executable, "-W", "error", SCRIPT, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More text than LIMIT, with lines of many lengths, one of them longer than an event may be."""
    file = tmp_path_factory.mktemp("input") / "book.txt"
    lines = [f"{number:06d} {'word ' * (number % 23)}\n" for number in range(120_000)]
    file.write_text("\n" + "x" * 1_100_000 + "\n" + "".join(lines))
    return file


@pytest.fixture(scope="module")
def kept(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("kept") / "data"
    done = quickstart("--input", text, *SETTINGS, "--kills", "1", "--data", folder)

    assert done.returncode == 0, done.stderr

    return folder


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    """A folder of its own for a test that damages it."""
    return Path(shutil.copytree(kept, tmp_path / "data"))


def verify(folder: Path, text: Path) -> subprocess.CompletedProcess[str]:
    return quickstart("verify", "--input", text, *SETTINGS, "--data", folder)


def first_chunk(folder: Path) -> Path:
    """The chunk at a segment's beginning; a killed writer may have left others, which belong to nobody."""
    home = min(path for path in folder.glob("lts/containers/*/*") if path.is_dir())
    return committed(home)[0][1]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_two_kills_lose_nothing(backend: str, text: Path, tmp_path: Path) -> None:
    done = quickstart("--input", text, *SETTINGS, "--kills", "2", "--seed", "7", "--backend", backend, temporary=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"verified {LIMIT} bytes in 3 segments, 2 kills, 0 lost"
    assert int(re.findall(r"(\d+) events sent twice", done.stdout)[0]) > 0


def test_the_temporary_folder_is_gone_afterwards(text: Path, tmp_path: Path) -> None:
    done = quickstart("--input", text, *SETTINGS, "--kills", "0", temporary=tmp_path)

    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_files_and_the_standard_library_are_inputs(text: Path) -> None:
    for arguments in (("--input", text.parent), ()):
        done = quickstart(*arguments, *SETTINGS, "--kills", "0")

        assert done.returncode == 0, done.stderr


def test_a_kept_folder_can_be_verified_again(kept: Path, text: Path) -> None:
    done = verify(kept, text)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"verified {LIMIT} bytes in 3 segments"


def test_a_flipped_byte_in_a_chunk_is_found(copy: Path, text: Path) -> None:
    chunk = first_chunk(copy)
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1  # near the beginning: what lies behind the committed length belongs to nobody
    chunk.chmod(0o644)
    chunk.write_bytes(data)

    done = verify(copy, text)

    assert done.returncode == 1
    assert re.match(r"quickstart: segment quickstart/part-\d, offset \d+: cannot be read: .*checksum", done.stderr)
    assert chunk.name in done.stderr


def test_a_missing_chunk_is_found(copy: Path, text: Path) -> None:
    chunk = first_chunk(copy)
    chunk.unlink()

    done = verify(copy, text)

    assert done.returncode == 1
    assert re.match(r"quickstart: segment quickstart/part-\d, offset \d+: ", done.stderr)
    assert chunk.name in done.stderr


def test_one_other_byte_in_the_input_is_found(kept: Path, text: Path, tmp_path: Path) -> None:
    """The judge compares with the input, not with the store's own checksums."""
    other = tmp_path / "other.txt"
    data = bytearray(text.read_bytes())
    data[1000] ^= 0x20
    other.write_bytes(data)

    done = verify(kept, other)

    assert done.returncode == 1
    was, now = (f"0x{byte:02x}" for byte in (text.read_bytes()[1000], data[1000]))
    assert done.stderr == f"quickstart: segment quickstart/part-1, offset 1000: the store returned {was} where the input has {now}\n"


def test_a_lost_tail_is_found(kept: Path, text: Path) -> None:
    """More input than was written looks like a store that lost its end."""
    done = quickstart("verify", "--input", text, "--limit", str(LIMIT + 30), "--segments", "3", "--data", kept)

    assert done.returncode == 1
    assert done.stderr.startswith("quickstart: segment quickstart/part-")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_ends_quietly(backend: str, text: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, SCRIPT, "--input", text, *SETTINGS, "--backend", backend, "--keep"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it says where it keeps the folder, just before it begins
        process.send_signal(signal.SIGINT)

        assert process.communicate() == ("", "")
        assert process.returncode == 130


def test_ctrl_c_in_the_middle_stops_the_writer_and_removes_the_folder(text: Path, tmp_path: Path) -> None:
    """On a terminal, where it tells of each kill: one is told of, and many are to come."""
    controller, terminal = os.openpty()
    command: list[str | Path] = [sys.executable, SCRIPT, "--input", text, *SETTINGS, "--kills", "100"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, env=environment, stdout=terminal, stderr=subprocess.PIPE) as process:
        os.close(terminal)
        shown = b""
        while b"killed the writer" not in shown:
            shown += os.read(controller, 4096)
        process.send_signal(signal.SIGINT)
        drain(controller)

        # Its children have the same standard error output: it ends when the last of them has.
        assert process.communicate()[1] == b""

    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def drain(controller: int) -> None:
    """Read a terminal until nobody has it open any more."""
    with os.fdopen(controller, "rb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.read(4096):
            pass


def test_a_writer_whose_parent_is_gone_stops(text: Path, tmp_path: Path) -> None:
    done = quickstart("write", "--input", text, *SETTINGS, "--data", tmp_path / "data")

    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1]) == {"event": "failed", "error": "the parent process is gone"}


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("--limit", "many"), "argument --limit"),
        (("--segments", "0"), "a whole number from 1 to 1000, not '0'"),
        (("--input", "no-such-file"), "no-such-file does not exist"),
        (("verify",), "verify needs --data"),
        (("verify", "--data", "."), "holds no store"),
        (("--data", "."), "is not an empty folder"),
    ],
)
def test_wrong_arguments_are_told(arguments: tuple[str, ...], reason: str) -> None:
    done = quickstart(*arguments)

    assert done.returncode == 2
    assert reason in done.stderr
