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
from tierlog.storage_backends.ledgers.process import HEAP_MB, SidecarProgram
from tierlog.storage_backends.ledgers.sidecar import SidecarOptions, SidecarService
from tierlog.storage_backends.ledgers.wire import HELLO, Operation

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
async def fake(folder: Path, code: str, heap_mb: int = HEAP_MB) -> AsyncIterator[SidecarService]:
    program = folder / "java"
    program.write_text(_START + textwrap.dedent(code))
    program.chmod(0o700)
    found = SidecarProgram(java=str(program), class_path=("x",), folder=str(folder), heap_mb=heap_mb)
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
        await service.session()
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


async def test_b11_what_a_jvm_prints_about_its_end_is_in_the_error(tmp_path: Path) -> None:
    """On standard output, if it has no memory left."""
    code = """
        greet()
        request()
        print("Terminating due to java.lang.OutOfMemoryError: Java heap space", flush=True)
        sys.exit(3)
    """
    async with fake(tmp_path, code) as service:
        with pytest.raises(Unavailable, match="Terminating due to java.lang.OutOfMemoryError"):
            await service.session()


async def test_b11_a_ledger_that_was_made_for_a_caller_that_gave_up_is_let_go_of(tmp_path: Path) -> None:
    code = """
        greet()
        made, number_made, body = request()
        number, operation, body = request()
        reply(made, struct.pack(">IQ", 1234, 99))
        reply(number, struct.pack(">QI", operation, 10_000))
        dropped, operation, body = request()
        number = request()[0]
        reply(dropped)
        reply(number, struct.pack(">QI", operation << 32 | int.from_bytes(body, "big"), 10_000))
        read(99)
    """
    async with fake(tmp_path, code) as service:
        await service.connected()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.create_ledger, Quorum(2, 2, 2), {})
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        await service.session()

        assert (await service.session()).id == Operation.DROP_LEDGER << 32 | 1234


_COUNTING = """
    greet()
    pending = []
    index = whole = 0
    while True:
        number, operation, body = request()
        if operation in (3, 5):
            index += 1
            reply(number, struct.pack(">IQ" if operation == 3 else ">IQQII", *MADE(index)))
        elif operation != 28:
            whole += len(set(body[4:])) == 1
            pending.append((number, operation))
        else:
            # Before this one: what it releases is asked for after that.
            found = len(pending)
            for each, of in pending:
                reply(each, struct.pack(">Q", index) if of == 4 else struct.pack(">I", 0))
                index += of == 4
            pending.clear()
            reply(number, struct.pack(">QI", whole << 32 | found, 10_000))
"""
_COUNTING_APPENDS = "MADE = lambda index: (index, 99 + index)\n" + textwrap.dedent(_COUNTING)
KiB, MiB = 1 << 10, 1 << 20


async def requests_under_way(service: SidecarService) -> int:
    """All are answered then."""
    await anyio.wait_all_tasks_blocked()
    return (await service.session()).id & 0xFFFF_FFFF


async def test_b12_appends_that_find_no_room_wait_in_order_and_hold_up_no_other_call(tmp_path: Path) -> None:
    async with fake(tmp_path, _COUNTING_APPENDS, heap_mb=4) as service:
        ledgers = [await service.create_ledger(Quorum(2, 2, 2), {}) for _ in range(2)]
        firsts = {}

        async def append(name: int, sizes: list[int]) -> None:
            firsts[name] = await ledgers[name % 2].append([[bytes(size)] for size in sizes])

        async with anyio.create_task_group() as tasks:
            for name, sizes in enumerate([[400 * KiB] * 4, [400 * KiB], [100], [100, 3 * MiB], [100]]):
                tasks.start_soon(append, name, sizes)
                await anyio.wait_all_tasks_blocked()
            # Of 1 MiB; what is larger goes alone.
            assert [await requests_under_way(service) for _ in range(6)] == [2, 2, 3, 1, 1, 0]

    assert [firsts[name] for name in range(5)] == [2, 6, 7, 8, 10]


@pytest.mark.parametrize(("length", "under_way"), [(400 * KiB, [2, 2, 1, 0]), (1 << 30, [1, 1, 1, 1, 1, 0])])
async def test_b12_reads_under_way_have_no_more_bytes_than_their_room(
    tmp_path: Path, length: int, under_way: list[int]
) -> None:
    """Of all logs. Nobody knows the size of an entry before it is read, but that of a small ledger."""
    code = f"MADE = lambda index: (index, 999, {length}, 1, 0)\n" + textwrap.dedent(_COUNTING)
    async with fake(tmp_path, code, heap_mb=4) as service, anyio.create_task_group() as tasks:
        for number in range(5):
            ledger = await service.open_ledger(number, recover=True)
            tasks.start_soon(ledger.read, 0, 15)
        assert [await requests_under_way(service) for _ in under_way] == under_way


async def test_b12_of_what_waits_for_room_a_cancelled_read_is_not_sent_and_a_cancelled_append_is(
    tmp_path: Path,
) -> None:
    """With its bytes as they were: entries behind it may wait already, and its caller reuse its buffers."""
    async with fake(tmp_path, _COUNTING_APPENDS, heap_mb=4) as service:
        ledger = await service.create_ledger(Quorum(2, 2, 2), {})
        buffers = [bytearray(MiB) for _ in range(2)]
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ledger.append, [[each] for each in buffers])
                for _ in range(2):
                    tasks.start_soon(ledger.read, 0, 15)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        for each in buffers:
            each[:] = os.urandom(MiB)
        assert [await requests_under_way(service) for _ in range(3)] == [2, 1, 0]
        assert (await service.session()).id >> 32 == 2
