"""Starts of a sidecar that fail, without Java: the program is a script."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
import trio
import trio.testing

from tierlog.storage_backends.base.errors import ClosedError, TierlogError, Unavailable
from tierlog.storage_backends.base.ledger_service import SidecarNotStarted
from tierlog.storage_backends.ledgers import sidecar
from tierlog.storage_backends.ledgers.connection import SidecarConnection
from tierlog.storage_backends.ledgers.process import SidecarProgram
from tierlog.storage_backends.ledgers.server_names import require_known
from tierlog.storage_backends.ledgers.sidecar import SidecarOptions, SidecarService


@pytest.mark.anyio
async def test_the_last_words_of_a_program_that_ends_at_once_are_in_the_error(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'there is no memory' >&2\nexit 1\n")
    java.chmod(0o755)
    service = SidecarService(
        SidecarProgram(java=str(java), class_path=(), folder=str(tmp_path)),
        SidecarOptions(servers="127.0.0.1:1"),
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(service.run)
        with pytest.raises(SidecarNotStarted, match="has ended .*: there is no memory"):
            await service.count_bookies()
        service.close()


@pytest.mark.anyio
async def test_b11_names_that_do_not_resolve_start_no_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"127.0.0.1", "zk3"}

    async def look_up(host: str, port: object, **_: object) -> list[object]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(anyio, "getaddrinfo", look_up)
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'it was started' >&2\nexit 1\n")
    java.chmod(0o755)
    program = SidecarProgram(java=str(java), class_path=(), folder=str(tmp_path))

    async def said_of(servers: str) -> str:
        service = SidecarService(program, SidecarOptions(servers=servers))
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            with pytest.raises(Unavailable) as caught:
                await service.count_bookies()
            service.close()
        return str(caught.value)

    found = await said_of("zk1:2181,zk2:2181")
    assert "these names do not resolve: zk1 (Name or service not known), zk2 (" in found
    # The client asks the ones that it finds.
    for servers in ("zk1:2181,zk3:2181", "zk3", "127.0.0.1:2181"):
        assert "it was started" in await said_of(servers)


@pytest.mark.anyio
async def test_a_name_that_is_none_does_not_resolve() -> None:
    with pytest.raises(Unavailable, match="this name does not resolve: x{70}"):
        await require_known(f"{'x' * 70}.org:2181")
    await require_known("[::1]:2181")


class Failing(SidecarService):
    """Each start takes a second, and fails."""

    starts = 0

    async def _serve(
        self, *, task_status: anyio.abc.TaskStatus[SidecarConnection] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        self.starts += 1
        await anyio.sleep(1.0)
        raise Unavailable("ZooKeeper does not answer")


def test_b11_calls_that_are_repeated_start_a_failing_sidecar_ever_more_seldom() -> None:
    async def body() -> None:
        service = Failing(SidecarProgram(java="", class_path=(), folder=""), SidecarOptions(servers="zk1"))
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            for _ in range(600):
                with pytest.raises(TierlogError, match="does not answer"):
                    await service.count_bookies()
                await anyio.sleep(0.1)
            # In a minute or more: after 0.5, 1, 2, 4, 8 and then each 10 seconds.
            assert 8 <= service.starts <= 12
            service.close()

    assert sidecar._LONGEST_PAUSE == 10.0
    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


@contextmanager
def connection_of_its_own() -> Iterator[SidecarConnection]:
    """To nobody."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield SidecarConnection(ours, patience=30.0, room=1 << 20)


class Slow(SidecarService):
    """Each start takes two seconds."""

    starts = 0

    async def _serve(
        self, *, task_status: anyio.abc.TaskStatus[SidecarConnection] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        self.starts += 1
        await anyio.sleep(2.0)
        with connection_of_its_own() as connection:
            task_status.started(connection)
            await anyio.sleep_forever()


def test_b11_a_start_goes_on_when_those_that_wait_for_it_give_up() -> None:
    """A supervisor gives each check of its lease less time than a sidecar takes to start."""

    async def body() -> None:
        service = Slow(SidecarProgram(java="", class_path=(), folder=""), SidecarOptions(servers="zk1"))
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            for _ in range(2):
                with anyio.move_on_after(0.7) as scope:
                    await service.connected()
                assert scope.cancelled_caught
            with anyio.fail_after(0.7):
                await service.connected()
            assert service.starts == 1
            service.close()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


class Ending(SidecarService):
    """Each one ends after some seconds, by the number of its start."""

    def __init__(self, *seconds: float) -> None:
        super().__init__(SidecarProgram(java="", class_path=(), folder=""), SidecarOptions(servers="zk1"))
        self.starts: list[float] = []
        self._seconds = seconds

    async def _serve(
        self, *, task_status: anyio.abc.TaskStatus[SidecarConnection] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        self.starts.append(anyio.current_time())
        seconds = self._seconds[len(self.starts) - 1]
        with connection_of_its_own() as connection:
            task_status.started(connection)
            await anyio.sleep(seconds)
            connection.end("it was killed")


def test_b11_a_sidecar_that_ended_is_followed_before_the_next_call_unless_it_was_brief() -> None:
    async def body() -> None:
        service = Ending(60.0, 6.0, 1.0, 60.0)
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            begun = anyio.current_time()
            await service.connected()
            await anyio.sleep(100.0)
            assert [at - begun for at in service.starts] == pytest.approx([0.0, 60.0, 66.0])
            await service.connected()
            assert len(service.starts) == 4
            service.close()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


class Lingering(SidecarService):
    """The process of the first one ends a second after its socket, and the second start fails."""

    starts = 0

    async def _serve(
        self, *, task_status: anyio.abc.TaskStatus[SidecarConnection] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        self.starts += 1
        if self.starts == 2:
            raise Unavailable("these names do not resolve")
        with connection_of_its_own() as connection:
            task_status.started(connection)
            await anyio.sleep(60.0)
            connection.end("it closed its socket")
            await anyio.sleep(1.0)


@pytest.mark.parametrize("asked_after", [0.2, 0.7], ids=["pause is over", "pause"])
def test_b11_a_start_that_fails_while_the_sidecar_before_ends_ends_only_the_call(asked_after: float) -> None:
    async def body() -> None:
        service = Lingering(SidecarProgram(java="", class_path=(), folder=""), SidecarOptions(servers="zk1"))
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            await service.connected()
            await anyio.sleep(60.0 + asked_after)
            with pytest.raises(TierlogError, match="do not resolve"):
                await service.connected()
            await anyio.sleep(5.0)
            await service.connected()
            assert service.starts == 3
            service.close()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


def test_b11_a_start_ends_with_its_service() -> None:
    async def body() -> None:
        service = Slow(SidecarProgram(java="", class_path=(), folder=""), SidecarOptions(servers="zk1"))
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)

            async def ask() -> None:
                with pytest.raises(ClosedError):
                    await service.connected()

            tasks.start_soon(ask)
            await anyio.sleep(1.0)
            service.close()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))
