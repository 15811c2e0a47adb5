"""The control socket: private, short, refused while somebody listens; connections that are bounded and time
out."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import anyio
import anyio.abc
import anyio.to_thread
import pytest

from support.patience import scaled
from tierlog.actors.supervisor.control import channel
from tierlog.actors.supervisor.control.channel import (
    Connection,
    control_path,
    listen,
    living_listener,
    make_private_folder,
)
from tierlog.actors.supervisor.control.messages import Drain, Heartbeat, Hello, Lines, ProtocolError, encode
from tierlog.storage_backends.base.errors import Unavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        yield f"{folder}/room/control"


def test_the_path_is_short_and_each_folders_own(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    here, there = (control_path(b"s" * 16, str(tmp_path / name), environment) for name in ("here", "a-copy"))
    assert here.startswith(f"/run/user/1000/tierlog-{os.getuid()}/")
    assert len(here.encode()) < 100
    assert here != there
    assert here == control_path(b"s" * 16, str(tmp_path / "here"), environment)
    assert control_path(b"s" * 16, "x", {}).startswith(tempfile.gettempdir())
    assert control_path(b"s" * 16, "x", {}) != control_path(b"s" * 16, os.fsdecode(b"x\xff"), {})


@pytest.mark.parametrize("runtime", ["relative/folder", "", f"/{'long' * 30}"])
def test_a_runtime_folder_that_can_hold_no_socket_is_ignored(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = control_path(b"s" * 16, "x", {})
    assert control_path(b"s" * 16, "x", {"XDG_RUNTIME_DIR": runtime}) == usual
    monkeypatch.setattr(tempfile, "tempdir", f"/{'longer' * 30}")
    assert control_path(b"s" * 16, "x", {"XDG_RUNTIME_DIR": runtime}).startswith("/tmp/tierlog-")


async def test_only_the_user_can_reach_the_socket(path: str) -> None:
    async with await listen(path):
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


def test_missing_parents_are_made_for_the_user_only(path: str) -> None:
    make_private_folder(path)
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_that_others_can_enter_is_refused(path: str, mode: int) -> None:
    room = os.path.dirname(path)
    os.mkdir(room)
    os.chmod(room, mode)
    with pytest.raises(Unavailable, match="is not a folder that only you can enter"):
        make_private_folder(room)


def test_a_link_in_place_of_the_folder_is_refused(path: str, tmp_path: Path) -> None:
    os.symlink(tmp_path, os.path.dirname(path))
    with pytest.raises(Unavailable):
        make_private_folder(os.path.dirname(path))


async def test_v1_a_socket_with_a_live_listener_is_refused_naming_its_process(path: str) -> None:
    async with await listen(path):
        assert living_listener(path) == os.getpid()
        with pytest.raises(Unavailable, match=f"process {os.getpid()} already supervises this store"):
            await listen(path)


async def test_a_socket_that_was_left_is_replaced(path: str) -> None:
    make_private_folder(os.path.dirname(path))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert living_listener(path) is None
    async with await listen(path):
        assert living_listener(path) == os.getpid()


async def test_sockets_of_killed_supervisors_are_removed_and_those_of_living_ones_stay(path: str) -> None:
    room = Path(path).parent
    make_private_folder(str(room))
    (room / "a-file").touch()
    async with await listen(f"{room}/living"):
        for name in ("killed", "starting.new"):
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(f"{room}/{name}")
        async with await listen(path):
            names = {entry.name for entry in room.iterdir()}
        assert living_listener(f"{room}/living") == os.getpid()
    assert names == {"a-file", "living", "starting.new", "control"}


async def test_a_socket_that_goes_away_meanwhile_keeps_no_other_supervisor_from_starting(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two services of one user begin at the same moment."""
    room = Path(path).parent
    make_private_folder(str(room))
    left = [f"{room}/{name}" for name in ("one", "two")]
    for each in left:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(each)

    def probe(found: str) -> int | None:
        if found in left:
            os.unlink(next(each for each in left if each != found))
        return living_listener(found)

    monkeypatch.setattr(channel, "living_listener", probe)
    async with await listen(path):
        assert {entry.name for entry in room.iterdir()} == {"control"}


async def test_a_socket_that_is_made_again_meanwhile_is_not_removed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V1: another supervisor begins to listen where a killed one did, as soon as nobody was found there."""
    other = f"{Path(path).parent}/other"
    make_private_folder(str(Path(path).parent))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(other)
    listens, ends = threading.Event(), threading.Event()

    async def supervise() -> None:
        async with await listen(other):
            listens.set()
            await anyio.to_thread.run_sync(ends.wait)

    supervisor = threading.Thread(target=anyio.run, args=(supervise,))

    def probe(found: str) -> int | None:
        answer = living_listener(found)
        if found == other and supervisor.ident is None:
            supervisor.start()
            listens.wait(0.2)  # It waits for the lock of the folder.
        return answer

    monkeypatch.setattr(channel, "living_listener", probe)
    try:
        async with await listen(path):
            await anyio.to_thread.run_sync(listens.wait)
            assert living_listener(other) == os.getpid()
    finally:
        ends.set()
        supervisor.join()


async def test_v1_a_supervisor_that_is_too_busy_to_accept_keeps_its_socket(path: str) -> None:
    """Its queue of connections is full."""
    make_private_folder(os.path.dirname(path))
    with ExitStack() as opened:
        busy = opened.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(path)
        busy.listen(1)
        with pytest.raises(BlockingIOError):
            for _ in range(10):
                waiting = opened.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(path)
        with pytest.raises(Unavailable, match="process unknown already supervises this store"):
            await listen(path)
        assert os.path.exists(path)


class Pair:
    """Both ends of a connection: the supervisor's ``Connection``, and a plain socket."""

    def __init__(self, stream: anyio.abc.SocketStream, other: socket.socket) -> None:
        self.connection = Connection(stream)
        self.other = other
        self.stream = stream


@pytest.fixture
async def pair(path: str) -> Pair:
    other = socket.socket(socket.AF_UNIX)
    async with await listen(path) as listener:
        other.connect(path)
        return Pair(await listener.accept(), other)


async def test_sent_bytes_arrive_and_finish_writes_the_rest(pair: Pair) -> None:
    async with pair.stream, anyio.create_task_group() as tasks:
        tasks.start_soon(pair.connection.write)
        for term in range(3):
            pair.connection.send(Drain(term))
        pair.connection.finish()
        await pair.connection.written.wait()
    with pair.other:
        assert Lines().feed(pair.other.recv(1000)) == [Drain(0), Drain(1), Drain(2)]


async def test_v5_a_side_that_does_not_read_loses_its_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = anyio.Event()

    async def read() -> None:
        with pair.connection.scope:
            await pair.connection.receive()
        ended.set()

    with pair.other:
        async with pair.stream, anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for _ in range(channel.QUEUE_MAX + 1):
                pair.connection.send(Drain(1))
            with anyio.fail_after(scaled(30)):
                await ended.wait()


async def test_v4_the_peer_process_of_a_socket_is_known(pair: Pair) -> None:
    with pair.other:
        async with pair.stream:
            assert pair.connection.peer == os.getpid()


async def test_a_connection_begins_with_hello(pair: Pair) -> None:
    with pair.other:
        async with pair.stream:
            hello = Hello("host-0", 7, "http://x", {1: 2}, 3)
            pair.other.sendall(encode(hello) + encode(Heartbeat(1, 0)))
            assert await pair.connection.hello() == hello
            assert await pair.connection.receive() == Heartbeat(1, 0), "what came with it is not lost"


@pytest.mark.parametrize("first_bytes", [encode(Heartbeat(1, 0)), b"nonsense\n", b""])
async def test_v5_a_connection_without_hello_is_refused(
    pair: Pair, first_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "HELLO_SECONDS", 0.05)
    with pair.other:
        async with pair.stream:
            pair.other.sendall(first_bytes)
            with pytest.raises(ProtocolError):
                await pair.connection.hello()


async def test_a_connection_that_only_tried_whether_somebody_listens_is_no_error(pair: Pair) -> None:
    async with pair.stream:
        pair.other.close()
        assert await pair.connection.hello() is None


async def test_messages_end_with_the_connection(pair: Pair) -> None:
    async with pair.stream:
        pair.other.sendall(encode(Heartbeat(1, 0.5)) + b'{"type":"heart')
        pair.other.close()
        assert await pair.connection.receive() == Heartbeat(1, 0.5)
        assert await pair.connection.receive() is None


async def test_v2_what_has_not_arrived_when_a_connection_is_aborted_never_does() -> None:
    """It would be executed by a host that is back from a partition."""
    server = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = server.extra(anyio.abc.SocketAttribute.local_port)
    async with server:
        with socket.create_connection(("127.0.0.1", port), timeout=scaled(10)) as host:
            async with await cast(anyio.abc.SocketListener, server.listeners[0]).accept() as stream:
                connection = Connection(stream)
                with connection.scope:
                    connection.send(Drain(1))
                    connection.abort()
                    await anyio.sleep_forever()
                connection.finish()
                await connection.write()
            with pytest.raises(ConnectionResetError):
                await anyio.to_thread.run_sync(host.recv, 1)
