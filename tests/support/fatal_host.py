"""A host that dies while it opens one container, as if what is in it could not be digested: a program for
tests of quarantine.

Owns: the fault. The environment says which container (FATAL_CONTAINER), and names a file without which
nothing happens (FATAL_WHILE). The fault strikes after the log was opened, so that each death leaves a higher
epoch behind.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tierlog.actors.container.container import Container
from tierlog.actors.host.main import main
from tierlog.journal.log.contract import OpenedLog

_open = Container._open


async def _open_and_die(container: Container) -> OpenedLog:
    opened = await _open(container)
    if container.index == int(os.environ["FATAL_CONTAINER"]) and Path(os.environ["FATAL_WHILE"]).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return opened


if __name__ == "__main__":
    Container._open = _open_and_die  # type: ignore[method-assign, assignment]
    sys.exit(main())
