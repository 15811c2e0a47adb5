"""The quickstart proves what it says, its judge is not blind, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import quickstart as program

from quickstart_parts.checking import check_files, read_back
from quickstart_parts.shares import QuickstartError, Share, read_input, split_input
from spark_java import NoJava
from support import spark as support
from tierlog.actors.store.read_only import open_reader

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "quickstart.py"
LIMIT = 2_000_000
SEGMENTS = 3
SETTINGS = ("--limit", str(LIMIT), "--segments", str(SEGMENTS))
KILLED = b"with SIGKILL; the job goes on"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at processes through /proc"),
]


def environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "120", "TMPDIR": str(temporary), "TERM": "xterm"}


def quickstart(temporary: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", SCRIPT, *arguments]
    return subprocess.run(
        command,
        env=environment(temporary),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def processes_with(temporary: Path) -> list[str]:
    """Processes that were told of the temporary folder: all that a quickstart starts, and what these start,
    are."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"TMPDIR={temporary}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More text than LIMIT, with lines of many lengths, one of them longer than an event may be."""
    file = tmp_path_factory.mktemp("input") / "book.txt"
    lines = [f"{number:06d} {'word ' * (number % 23)}\n" for number in range(20_000)]
    file.write_text("\n" + "x" * 1_100_000 + "\n" + "".join(lines))
    return file


@pytest.fixture(scope="module")
def kept(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run: the whole job, without Spark."""
    home, temporary = tmp_path_factory.mktemp("kept"), tmp_path_factory.mktemp("temporary")
    done = quickstart(temporary, "--no-spark", "--input", text, *SETTINGS, "--data", home / "data")

    assert (done.returncode, done.stderr) == (0, "")
    assert_verified(done.stdout)
    assert int(re.findall(r"(\d+) events sent twice", done.stdout)[0]) > 0
    assert list(temporary.iterdir()) == []
    assert processes_with(temporary) == []
    return home / "data"


def assert_verified(out: str) -> None:
    """A killed host had two of the four containers."""
    assert out.splitlines()[-1] == f"verified {LIMIT} bytes in {SEGMENTS} segments, 2 failovers, 0 lost"
    assert "1 host killed with SIGKILL, 2 containers failed over within" in out


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    """A folder of its own for a test that damages it."""
    return Path(shutil.copytree(kept, tmp_path / "data"))


@pytest.fixture
def shares(text: Path) -> list[Share]:
    return split_input(read_input(text, LIMIT), SEGMENTS)


# --- the whole ----------------------------------------------------------------------------------


def test_clients_lose_nothing_when_a_host_is_killed(kept: Path) -> None:
    assert (kept / "wal" / "store").exists()


def test_spark_loses_nothing_when_a_host_is_killed(text: Path, tmp_path: Path) -> None:
    if reason := support.missing():
        pytest.skip(reason)
    done = quickstart(tmp_path, "--input", text, *SETTINGS)

    assert (done.returncode, done.stderr) == (0, "")
    assert_verified(done.stdout)
    assert re.search(r"read back with Spark at [\d.]+ MB/s, without it at [\d.]+ MB/s", done.stdout)
    assert list(tmp_path.iterdir()) == []
    assert processes_with(tmp_path) == []


def test_a_kept_folder_can_be_verified_again(copy: Path, text: Path, tmp_path: Path) -> None:
    done = quickstart(tmp_path, "verify", "--input", text, *SETTINGS, "--data", copy)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"verified {LIMIT} bytes in {SEGMENTS} segments"


def test_a_damaged_folder_is_told(copy: Path, text: Path, tmp_path: Path) -> None:
    chunk = change(first_chunk(copy), lambda data: b"\xff" + data[1:])
    done = quickstart(tmp_path, "verify", "--input", text, *SETTINGS, "--data", copy)

    assert done.returncode == 1
    assert re.match(r"quickstart: segment quickstart/part-\d, offset \d+: ", done.stderr)
    assert chunk.name in done.stderr


# --- the judge ----------------------------------------------------------------------------------


def first_chunk(folder: Path) -> Path:
    """The chunk at the first segment's beginning."""
    return min(
        path
        for path in folder.glob("lts/containers/*/*/*")
        if re.fullmatch(r"[0-9a-f]{16}-0{16}-[0-9a-f]{32}", path.name)
    )


def change(path: Path, how: Callable[[bytes], bytes]) -> Path:
    path.chmod(0o644)
    path.write_bytes(how(path.read_bytes()))
    return path


async def test_the_chunk_files_hold_the_input(kept: Path, shares: list[Share]) -> None:
    assert all(chunks > 0 for chunks in await check_files(kept, shares))


@pytest.mark.parametrize(
    "damage, reason",
    [
        (
            lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
            "offset 100: .* holds 0x.. where the input has 0x..",
        ),
        (lambda data: data[:100], "offset 100: .* ends here, not at"),
    ],
)
async def test_a_chunk_file_that_is_not_the_input_is_found(
    damage: Callable[[bytes], bytes], reason: str, copy: Path, shares: list[Share]
) -> None:
    """The judge reads the files itself, and does not rely on the store's checksums."""
    change(first_chunk(copy), damage)

    with pytest.raises(QuickstartError, match=f"segment quickstart/part-\\d, {reason}"):
        await check_files(copy, shares)


async def test_a_missing_chunk_file_is_found(copy: Path, shares: list[Share]) -> None:
    chunk = first_chunk(copy)
    chunk.unlink()

    with pytest.raises(QuickstartError, match=f"offset 0: the chunk .*{chunk.name} is missing"):
        await check_files(copy, shares)


async def test_one_other_byte_in_the_input_is_found(kept: Path, text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    data = bytearray(text.read_bytes())
    data[1_000] ^= 0x20
    other.write_bytes(data)
    share = split_input(read_input(other, LIMIT), SEGMENTS)[0]

    async with open_reader(kept) as view:
        with pytest.raises(
            QuickstartError, match="offset 1008: the service returned 0x78 where the input has 0x58"
        ):
            await read_back(view, share, lambda _: None)


# --- the end ------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_a_terminal(temporary: Path, *arguments: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The program, and the terminal's other end. On a terminal it tells of what it does while it does it."""
    controller, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, SCRIPT, *arguments],
        env=environment(temporary),
        stdout=terminal,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(terminal)
        yield process, controller


def interrupted(temporary: Path, *arguments: str | Path) -> tuple[int, bytes]:
    """Ctrl-C after the first kill, when more are to come; exit status and standard error output."""
    with on_a_terminal(temporary, "--kills", "10", *SETTINGS, *arguments) as (process, controller):
        shown = b""
        while KILLED not in shown:
            shown += os.read(controller, 4096)
        process.send_signal(signal.SIGINT)
        with os.fdopen(controller, "rb", buffering=0) as stream, contextlib.suppress(OSError):
            while stream.read(4096):
                pass
        errors = process.communicate()[1]
    return process.returncode, errors


def test_ctrl_c_ends_hosts_and_clients_and_removes_the_folder(text: Path, tmp_path: Path) -> None:
    assert interrupted(tmp_path, "--no-spark", "--input", text) == (130, b"")
    assert list(tmp_path.iterdir()) == []
    assert processes_with(tmp_path) == []


@pytest.mark.long
def test_ctrl_c_ends_java_too(text: Path, tmp_path: Path) -> None:
    if reason := support.missing():
        pytest.skip(reason)
    assert interrupted(tmp_path, "--input", text) == (130, b"")
    assert list(tmp_path.iterdir()) == []
    assert processes_with(tmp_path) == []


def test_ctrl_c_among_the_imports_ends_it_without_a_word(tmp_path: Path) -> None:
    """Something that it imports stands for the moment at which the signal comes."""
    (tmp_path / "anyio.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


# --- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("--limit", "many"), "argument --limit"),
        (("--segments", "0"), "a whole number from 1 to 1000, not '0'"),
        (("--kills", "11"), "a whole number from 0 to 10, not '11'"),
        (("--input", "no-such-file"), "no-such-file does not exist"),
        (("verify",), "verify needs --data"),
        (("verify", "--data", "."), "holds no store"),
        (("--data", "."), "is not an empty folder"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(list(arguments))

    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "found, reason",
    [
        (
            None,
            "pyspark, pyarrow, pandas not found: run scripts/quickstart, which installs what it needs",
        ),
        ("something", "no Java here: install it"),
    ],
)
def test_what_spark_lacks_is_told_in_one_line(
    found: Any, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise NoJava("no Java here")

    monkeypatch.setattr(program, "find_spec", lambda name: found)
    monkeypatch.setattr(program, "find_java", refuse)

    assert program.main([]) == 1
    assert capsys.readouterr() == (
        "",
        f"quickstart: {reason}, or do without Spark: scripts/quickstart --no-spark\n",
    )
