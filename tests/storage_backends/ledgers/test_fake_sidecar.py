"""What this process does with a sidecar that is none, or ends: with a program in Java's place (rule B11)."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from support.patience import scaled
from tierlog.storage_backends.base.errors import ClosedError, OutcomeUnknown, Unavailable, Unsupported
from tierlog.storage_backends.base.ledger_service import AppendLost, LedgerLost, Quorum
from tierlog.storage_backends.ledgers.process import SidecarProgram
from tierlog.storage_backends.ledgers.sidecar import SidecarOptions, SidecarService
from tierlog.storage_backends.ledgers.wire import HELLO

pytestmark = pytest.mark.anyio

_START = f"""\
#!{sys.executable}
import socket, struct, sys
link = socket.socket(fileno=0)
def read(size):
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            sys.exit(0)
        data += part
    return data
def request():
    length, number, operation = struct.unpack(">IIB", read(9))
    return number, operation, read(length - 5)
def reply(number, body=b"", status=0):
    link.sendall(struct.pack(">IIB", 5 + len(body), number, status) + body)
HELLO = {HELLO!r}
def greet():
    link.sendall(HELLO)
    read(8)
    number, operation, body = request()
    reply(number, struct.pack(">QI", 7, 10_000))
"""


@asynccontextmanager
async def fake(folder: Path, code: str) -> AsyncIterator[SidecarService]:
    program = folder / "java"
    program.write_text(_START + textwrap.dedent(code))
    program.chmod(0o700)
    found = SidecarProgram(java=str(program), class_path=("x",), folder=str(folder))
    service = SidecarService(found, SidecarOptions(servers="127.0.0.1:1"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(service.run)
        try:
            yield service
        finally:
            service.close()


async def test_b11_its_last_words_are_in_the_error(tmp_path: Path) -> None:
    code = """
        greet()
        request()
        sys.exit("OutOfMemoryError: of what it had")
    """
    async with fake(tmp_path, code) as service:
        with pytest.raises(Unavailable, match="has ended .*: OutOfMemoryError: of what it had"):
            await service.session()


async def test_b11_a_change_under_way_has_an_unknown_outcome_at_its_end(tmp_path: Path) -> None:
    async with fake(tmp_path, "greet(); request(); sys.exit(1)") as service:
        with pytest.raises(OutcomeUnknown, match="has ended"):
            await service.create("/a", b"")
        # Another one is started.
        with pytest.raises(Unavailable, match="has ended"):
            await service.load("/a")


async def test_b11_a_ledger_is_its_sidecars(tmp_path: Path) -> None:
    code = """
        greet()
        for handle in range(2):
            number, operation, body = request()
            reply(number, struct.pack(">IQ", handle, 99 + handle))
        request()
    """
    async with fake(tmp_path, code) as service:
        ledger = await service.create_ledger(Quorum(2, 2, 2), {})
        idle = await service.create_ledger(Quorum(2, 2, 2), {})
        with pytest.raises(AppendLost, match="has ended"):
            await ledger.append([[b"x"]])
        # Another one is started, which does not know them.
        await service.create_ledger(Quorum(2, 2, 2), {})
        with pytest.raises(AppendLost, match="ledger 100: .* has ended"):
            await idle.append([[b"x"]])
        with pytest.raises(AppendLost, match="has ended"):
            await ledger.append([[b"x"]])
        ledger.drop()
        with pytest.raises(LedgerLost, match="ledger 100: .* has ended"):
            await idle.read(0, 0)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("link.sendall(b'TLSC\\0\\2\\0\\0'); read(99)", "install it again"),
        ("link.sendall(b'GET / HT'); read(99)", "install it again"),
        ("sys.exit('no main class')", "no main class"),
        ("greet(); link.sendall(b'\\xff' * 20); read(1 << 20)", "a reply of 4294967295 bytes"),
        ("greet(); reply(12345); read(1 << 20)", "which nobody made"),
    ],
    ids=["version", "magic", "no start", "length", "number"],
)
async def test_b11_what_is_no_sidecar_ends_the_connection_with_the_reason(
    tmp_path: Path, code: str, why: str
) -> None:
    async with fake(tmp_path, code) as service:
        with pytest.raises(Unavailable, match=why):
            while True:
                await service.session()


async def test_what_it_refuses_is_raised_with_its_text(tmp_path: Path) -> None:
    code = """
        greet()
        number, operation, body = request()
        reply(number, "no right to /a: \\u00e4".encode(), 11)
        read(99)
    """
    async with fake(tmp_path, code) as service:
        with pytest.raises(Unsupported, match="no right to /a: \u00e4"):
            await service.load("/a")


async def test_a_large_request_is_written_in_pieces_beside_others_and_a_cancelled_one_whole(
    tmp_path: Path,
) -> None:
    """The caller may use its buffers again after a cancellation."""
    code = """
        import hashlib, time
        greet()
        for handle in range(2):
            number, operation, body = request()
            reply(number, struct.pack(">IQ", handle, 99 + handle))
        time.sleep(0.2)
        for entry in range(4):
            number, operation, body = request()
            first = entry if len(set(body[4:])) <= 1 else 1_000
            reply(number, struct.pack(">Q", first))
        read(99)
    """
    async with fake(tmp_path, code) as service:
        ledger = await service.create_ledger(Quorum(2, 2, 2), {})
        other = await service.create_ledger(Quorum(2, 2, 2), {})
        buffers = [bytearray(bytes([each]) * (1 << 20)) for each in range(3)]
        with anyio.move_on_after(0.05):
            await ledger.append([[each] for each in buffers])
        for each in buffers:
            each[:] = os.urandom(len(each))

        assert await other.append([[b"x"]]) == 3


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = SidecarProgram(java=str(tmp_path / "java"), class_path=("x",), folder=str(tmp_path))
    service = SidecarService(missing, SidecarOptions(servers="127.0.0.1:1"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(service.run)
        with pytest.raises(Unavailable, match="cannot be started"):
            await service.session()
        service.close()


async def test_a_closed_service_starts_nothing(tmp_path: Path) -> None:
    async with fake(tmp_path, "greet()") as service:
        pass
    with pytest.raises(ClosedError):
        await service.session()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierlog.storage_backends.ledgers.sidecar._PATIENCE_MIN", scaled(0.4))
    monkeypatch.setattr("tierlog.storage_backends.ledgers.sidecar._SESSIONS_MIN", 0.0)


@pytest.mark.extended
@pytest.mark.usefixtures("_impatient")
async def test_b11_a_sidecar_that_does_not_reply_is_stopped(tmp_path: Path) -> None:
    code = """
        import os
        greet()
        with open("pid", "w") as file:
            file.write(str(os.getpid()))
        operation = 0
        while operation != 20:
            number, operation, body = request()
            if operation == 28:
                reply(number, struct.pack(">QI", 7, 10_000))
        while True:
            request()
    """
    async with fake(tmp_path, code) as service:
        # A wait for a change may take for ever.
        with anyio.move_on_after(0.5) as scope:
            await service.wait_changed("/a", 0)
        assert scope.cancelled_caught
        pid = (tmp_path / "pid").read_text()
        with pytest.raises(Unavailable, match="has not replied for|has ended"):
            await service.load("/a")
        with anyio.fail_after(scaled(10)):
            while Path(f"/proc/{pid}").exists():
                await anyio.sleep(0.01)


@pytest.mark.extended
@pytest.mark.usefixtures("_impatient")
async def test_b11_a_call_without_a_reply_does_not_end_the_others(tmp_path: Path) -> None:
    """The services behind the sidecar may be the reason."""
    code = """
        greet()
        while True:
            number, operation, body = request()
            if operation == 28:
                reply(number, struct.pack(">QI", os.getpid(), 10_000))
    """
    async with fake(tmp_path, "import os\n" + textwrap.dedent(code)) as service:
        before = await service.session()
        for _ in range(2):
            with pytest.raises(OutcomeUnknown, match="has not replied"):
                await service.create("/a", b"")
        assert await service.session() == before
