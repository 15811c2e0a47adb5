"""A host that dies whenever it opens one container: a program for tests of quarantine.

The environment variable CRASH_CONTAINER is the container's index; CRASH_WHILE names a file without which
nothing happens. The host dies after it opened the log, so that each death leaves a higher epoch behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from tierlog.actors.container.ownership import StorageOwnership
from tierlog.actors.host.main import main
from tierlog.journal.log.contract import OpenedLog

_open_log = StorageOwnership.open_log


async def _open_and_die(ownership: StorageOwnership, previous_epochs: Collection[int] | None) -> OpenedLog:
    opened = await _open_log(ownership, previous_epochs)
    if ownership.container == int(os.environ["CRASH_CONTAINER"]) and Path(os.environ["CRASH_WHILE"]).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return opened


if __name__ == "__main__":
    StorageOwnership.open_log = _open_and_die  # type: ignore[method-assign, assignment]
    sys.exit(main())
