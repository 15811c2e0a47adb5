"""A disk that is small enough to be filled: a tmpfs of our own.

Owns: the mount, the filling, and their end. Does not own: what fills it when (``disk_full.py``). Mounting
needs root, or a user namespace in which one is root; the machine's own disk is never filled.
"""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path

from chaos_parts.service import ChaosError
from tierlog.actors.settings.units import MiB

SIZE = 384 * MiB
LOW_WATER = 24 * MiB


class SmallDisk:
    def __init__(self) -> None:
        """``ChaosError`` if nothing can be mounted here."""
        self.folder = Path(tempfile.mkdtemp(prefix="tierlog-chaos-disk-"))
        self._filler = self.folder / "filler"
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self.folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            self.folder.rmdir()
            raise ChaosError(
                f"no small disk can be mounted: {done.stderr.strip()}; be root, or run this under `unshare "
                f"--user --map-root-user --mount`"
            )

    @property
    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int) -> None:
        """Until no more than so much is free."""
        with self._filler.open("ab") as stream:
            while (size := self.free - leave) > 0:
                try:
                    os.posix_fallocate(stream.fileno(), stream.tell(), size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    continue  # The service took some meanwhile.
                stream.seek(0, os.SEEK_END)

    def release(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False)
        self.folder.rmdir()
