"""Full disks: nearly full, quite full, and free again. `scripts/chaos_disk_full.py` is its command."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

import tierlog
from chaos_parts.campaign import Run
from chaos_parts.disk import LOW_WATER, SmallDisk
from chaos_parts.ledger import Told
from chaos_parts.options import Options
from chaos_parts.program import free_port, run_script, settings
from chaos_parts.raw import RawStore
from chaos_parts.service import OwnService

_REFUSAL_LIMIT = 15.0
_ABOVE_NOTHING = 2 << 20
_AGAIN = 0.1
_SMALL = """
[wal]
low_water = "{low_water} B"
# A log looks at the disk's free space each time that it has filled the blocks it had set aside, at most a
# file's size: so soon.
file_size = "128 KiB"

[writer]
flush_bytes = "1 MiB"
flush_age = "2 s"
"""


class SmallDiskService(OwnService):
    """A service whose data lies on a disk that can be filled."""

    def __init__(self, options: Options, workplace: Path) -> None:
        self.disk = SmallDisk()
        config = settings(options) + _SMALL.format(low_water=LOW_WATER)
        folder = self.disk.folder / "data"
        super().__init__(
            folder,
            workplace,
            hosts=options.hosts,
            containers=options.containers,
            config=config,
            port=free_port(),
        )

    def keep(self, folder: Path) -> None:
        """The disk is gone when this ends: copy what shall outlast it."""
        if self.folder_path.exists():
            shutil.copytree(self.folder_path, folder / "data")

    def close(self) -> None:
        super().close()
        self.disk.close()


class DiskFull:
    @asynccontextmanager
    async def prepared(self, run: Run) -> AsyncIterator[None]:
        yield

    async def round(self, run: Run) -> None:
        """Fill, see appends refused and reads go on, perhaps lose a host meanwhile, free, see all resume."""
        assert isinstance(run.service, SmallDiskService)
        disk = run.service.disk
        await run.service.settled()
        quite = run.random.random() < 0.5
        run.did("disk quite full" if quite else "disk below low water")
        since = time.monotonic()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_keep_full, disk, 0 if quite else LOW_WATER - _ABOVE_NOTHING)
                await self._await_refusals(run, since)
                tasks.cancel_scope.cancel()
            await self._read(run)
            await anyio.sleep(run.random.uniform(0, 1.0))
            if run.random.random() < 0.3:
                await self._lose_host(run)
        finally:
            disk.release()
        await run.acks_again(
            range(run.service.containers), time.monotonic(), "disk free again, until the first ack"
        )

    async def _await_refusals(self, run: Run, since: float) -> None:
        wait = await run.ledger.first_told(Told.FULL, range(run.service.containers), since, _REFUSAL_LIMIT)
        run.verdict.sample(
            "disk filled, until appends are refused as StorageFull"
        ).values += wait.seconds.values()
        for container in sorted(wait.missing):
            run.broken(
                f"round {run.verdict.rounds + 1}: container {container} refused nothing within "
                f"{_REFUSAL_LIMIT:g} s of a full disk"
            )

    async def _read(self, run: Run) -> None:
        """Every segment can be read from its beginning."""
        async with RawStore(run.service.data_url) as store:
            for segment in run.segments:
                try:
                    block = await anext(store.read_blocks(segment))
                except tierlog.TierlogError as error:
                    run.broken(
                        f"round {run.verdict.rounds + 1}: {segment} cannot be read while the disk is full: "
                        f"{error}"
                    )
                else:
                    run.verdict.count("bytes read while full", len(block))

    async def _lose_host(self, run: Run) -> None:
        """Somebody else opens its containers on a full disk; or as soon as there is space."""
        victim = run.random.choice(await run.service.hosts())
        run.did("SIGKILL of a host on a full disk")
        run.service.hit(victim, signal.SIGKILL)
        await anyio.sleep(run.random.uniform(0, 1.5))


async def _keep_full(disk: SmallDisk, leave: int) -> None:
    """Also what flushes and checkpoints of the service free is taken, or there would be room again for a
    while."""
    while True:
        disk.fill(leave)
        await anyio.sleep(_AGAIN)


def main(text: str, arguments: Sequence[str]) -> int:
    return run_script("disk_full", text, arguments, DiskFull(), rounds=10, make_service=SmallDiskService)
