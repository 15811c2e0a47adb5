"""Fills the disk under a running service, and frees it again.

It starts `tierlog serve` on a small disk of its own (a tmpfs, which needs root, or root in a user namespace)
and writers that record every ack. In each round the disk is filled, to below the low-water mark or to the
last byte. Appends must be rejected as StorageFull (HTTP status 507) in every container, reads must go on;
sometimes a host is killed meanwhile. When the space is free again every container must ack again. At the end
every segment is checked as by scripts/chaos_failover.py.

  scripts/chaos_disk_full.py --rounds 5
  unshare --user --map-root-user --mount scripts/chaos_disk_full.py --rounds 5     # without being root
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

import tierlog
from chaos_parts.campaign import Options, Run
from chaos_parts.command_line import run_script, settings
from chaos_parts.http_store import HttpStore
from chaos_parts.ledger import Outcome
from chaos_parts.processes import RunError
from chaos_parts.service import OwnService
from tierlog.actors.settings.units import MiB

SIZE = 384 * MiB
LOW_WATER = 24 * MiB
_REJECTION_LIMIT = 15.0
_BELOW_LOW_WATER = 2 * MiB
_REFILL_SECONDS = 0.1
_SMALL = """
[wal]
low_water = "{low_water} B"
# A log checks the free space when it has used the blocks that it reserved, at most a file's size.
file_size = "128 KiB"

[writer]
flush_bytes = "1 MiB"
flush_age = "2 s"
"""


class SmallDisk:
    def __init__(self) -> None:
        """Raises ``RunError`` if nothing can be mounted here."""
        self.folder = Path(tempfile.mkdtemp(prefix="tierlog-chaos-disk-"))
        self._filler = self.folder / "filler"
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self.folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            self.folder.rmdir()
            raise RunError(
                f"no small disk can be mounted: {done.stderr.strip()}; be root, or run this under `unshare "
                f"--user --map-root-user --mount`"
            )

    @property
    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int) -> None:
        """Write until at most ``leave`` bytes are free."""
        with self._filler.open("ab") as stream:
            while (size := self.free - leave) > 0:
                try:
                    os.posix_fallocate(stream.fileno(), stream.tell(), size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    continue  # The service took some of it first.
                stream.seek(0, os.SEEK_END)

    def release(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False)
        self.folder.rmdir()


class SmallDiskService(OwnService):
    """A service whose data lies on a disk that can be filled."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.disk = SmallDisk()
        config = settings(options) + _SMALL.format(low_water=LOW_WATER)
        data = self.disk.folder / "data"
        super().__init__(folder, hosts=options.hosts, containers=options.containers, config=config, data=data)

    def keep(self, folder: Path) -> None:
        """The disk is removed at the end, so copy the data."""
        if self.folder.exists():
            shutil.copytree(self.folder, folder / "data")

    def close(self) -> None:
        super().close()
        self.disk.close()


async def fill(run: Run) -> None:
    """Fill; appends are rejected and reads go on; a host may be killed; free; all containers ack again."""
    assert isinstance(run.service, SmallDiskService)
    disk = run.service.disk
    await run.service.settled()
    full = run.random.random() < 0.5
    run.begin_fault("disk full" if full else "disk below low water")
    since = time.monotonic()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_keep_full, disk, 0 if full else LOW_WATER - _BELOW_LOW_WATER)
            figure = "disk filled, until appends are rejected as StorageFull"
            await run.first(Outcome.FULL, figure, since=since, limit=_REJECTION_LIMIT)
            tasks.cancel_scope.cancel()
        await _read(run)
        await anyio.sleep(run.random.uniform(0, 1.0))
        if run.random.random() < 0.3:
            # Another host opens its containers on the full disk, or when there is space again.
            victim = run.random.choice(await run.service.hosts())
            run.begin_fault("SIGKILL of a host on a full disk")
            run.service.send_signal(victim, signal.SIGKILL)
            await anyio.sleep(run.random.uniform(0, 1.5))
    finally:
        disk.release()
    await run.acks_again("disk free again, until the first ack")


async def _keep_full(disk: SmallDisk, leave: int) -> None:
    """Flushes and checkpoints free space, which is taken again."""
    while True:
        disk.fill(leave)
        await anyio.sleep(_REFILL_SECONDS)


async def _read(run: Run) -> None:
    """Every segment can be read from its beginning."""
    async with HttpStore(run.service.data_url) as store:
        for segment in run.segments:
            try:
                block = await anext(store.read_blocks(segment))
            except tierlog.TierlogError as error:
                run.violated_in_round(f"{segment} cannot be read while the disk is full: {error}")
            else:
                run.report.count("bytes read while full", len(block))


def main(arguments: Sequence[str]) -> int:
    return run_script("disk_full", __doc__, arguments, fill, rounds=10, make_service=SmallDiskService)
