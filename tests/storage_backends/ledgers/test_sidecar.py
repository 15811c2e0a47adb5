"""The sidecar on a real BookKeeper: the contract, and what ends it (rule B11)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from local_bookkeeper import LocalBookKeeper
from support.bookkeeper import pid_of, program, sidecar
from support.ledger_contract import PAIR, LedgerServiceContract
from support.patience import scaled
from support.s3 import numbered_world
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.storage_backends.base.errors import OutcomeUnknown, TierlogError, Unavailable
from tierlog.storage_backends.base.ledger_service import LedgerService
from tierlog.storage_backends.ledgers.sidecar import SidecarOptions, SidecarService

pytestmark = [pytest.mark.anyio, pytest.mark.extended]

LOG_ID = b"0123456789abcdef"


class TestSidecarService(LedgerServiceContract):
    @pytest.fixture(autouse=True)
    def _service(self, service: SidecarService) -> None:
        self.service = service

    def make_service(self) -> LedgerService:
        return self.service


async def test_b11_a_killed_sidecar_breaks_its_logs_and_the_next_opening_starts_another(
    bookkeeper: LocalBookKeeper, anyio_backend: str
) -> None:
    async with sidecar(bookkeeper.servers) as service:
        path, world = f"/killed/{anyio_backend}", numbered_world()
        log = BookKeeperLog(service, path, LOG_ID, world)
        await log.open()
        await log.append([b"acked"])
        os.kill(await pid_of(service), signal.SIGKILL)
        with pytest.raises((Unavailable, OutcomeUnknown), match="sidecar for BookKeeper has ended"):
            await log.append([b"lost"])
        with pytest.raises(Unavailable, match="open it again"):
            await log.append([b"later"])
        await log.close()

        again = BookKeeperLog(service, path, LOG_ID, world)
        await again.open()
        assert [bytes(payload) async for _, payload in again.read()] == [b"acked"]
        await again.close()


async def test_b11_calls_under_way_end_with_a_stopped_sidecar(
    bookkeeper: LocalBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierlog.storage_backends.ledgers.sidecar._PATIENCE_MIN", 3.0)
    service = SidecarService(program(), SidecarOptions(servers=bookkeeper.servers, session_timeout=1.0))
    async with anyio.create_task_group() as tasks:
        await tasks.start(service.run)
        ledger = await service.create_ledger(PAIR, {})
        os.kill(await pid_of(service), signal.SIGSTOP)
        with pytest.raises(OutcomeUnknown), anyio.fail_after(scaled(20)):
            await ledger.append([[b"x"]])
        with pytest.raises(OutcomeUnknown):
            await ledger.append([[b"y"]])
        with anyio.fail_after(scaled(20)):
            while await _count(service) != 3:
                await anyio.sleep(0.05)
        service.close()


async def _count(service: SidecarService) -> int:
    """0 while the sidecar that was stopped is not found out."""
    try:
        return await service.count_bookies()
    except Unavailable:
        return 0


async def test_b11_a_sidecar_ends_with_its_parent_however_that_ends(bookkeeper: LocalBookKeeper) -> None:
    code = (
        "import anyio\n"
        "from support.bookkeeper import pid_of, sidecar\n"
        "async def main():\n"
        f"    async with sidecar({bookkeeper.servers!r}) as service:\n"
        "        print(await pid_of(service), flush=True)\n"
        "        await anyio.sleep_forever()\n"
        "anyio.run(main)\n"
    )
    tests = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(tests), str(tests.parent / "scripts")])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        # Ctrl-C in a terminal is for its parent alone.
        assert os.getpgid(pid) != os.getpgid(parent.pid)
        parent.kill()
    with anyio.fail_after(scaled(10)):
        while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
            await anyio.sleep(0.05)


async def test_an_expired_session_leaves_its_ledgers(bookkeeper: LocalBookKeeper, anyio_backend: str) -> None:
    async with sidecar(bookkeeper.servers) as service:
        path = f"/expired/{anyio_backend}"
        before = await service.session()
        ledger = await service.create_ledger(PAIR, {})
        bookkeeper.expire(before.id)
        with anyio.fail_after(scaled(20)):
            while (await service.session()).id == before.id:
                await anyio.sleep(0.01)

        assert await _repeated(service, path)
        assert await ledger.append([[b"still written"]]) == 0
        ledger.drop()


async def _repeated(service: SidecarService, path: str) -> bool:
    """Whether the record is gone, once the new session answers."""
    with anyio.fail_after(scaled(20)):
        while True:
            try:
                return await service.load(path) is None
            except TierlogError:
                await anyio.sleep(0.05)


async def test_b11_what_a_sidecar_reads_when_it_starts_fences_no_ledger(bookkeeper: LocalBookKeeper) -> None:
    async with sidecar(bookkeeper.servers) as service:
        for left in await service.list_ledgers(-1, 1000):
            await service.delete_ledger(left)
        ledger = await service.create_ledger(PAIR, {})
        await ledger.append([[b"before"]])
        async with sidecar(bookkeeper.servers) as another:
            await another.session()
            # It has no other ledger to read, and takes about a third of this time for it.
            for _ in range(100):
                await ledger.append([[b"meanwhile"]])
                await anyio.sleep(0.01)
        ledger.drop()


async def test_b9_a_log_of_two_bookies_goes_on_without_one_of_three(
    bookkeeper: LocalBookKeeper, anyio_backend: str
) -> None:
    async with sidecar(bookkeeper.servers) as service:
        log = BookKeeperLog(service, f"/bookies/{anyio_backend}", LOG_ID, numbered_world())
        await log.open()
        await log.append([b"on two of three"])
        bookkeeper.remove_bookie()
        try:
            with anyio.fail_after(scaled(30)):
                for _ in range(5):
                    await log.append([b"on the two that are left"])
                await log.close()
                again = BookKeeperLog(service, f"/bookies/{anyio_backend}", LOG_ID, numbered_world())
                assert (await again.open()).next_group == 7
                await again.close()
        finally:
            bookkeeper.add_bookie()


async def test_services_that_do_not_answer_are_named() -> None:
    service = SidecarService(program(), SidecarOptions(servers="127.0.0.1:1", session_timeout=1.0))
    async with anyio.create_task_group() as tasks:
        await tasks.start(service.run)
        with pytest.raises(Unavailable, match=r"ZooKeeper at 127\.0\.0\.1:1 did not answer"):
            await service.session()
        service.close()
