"""`tierlog serve` whose hosts are `crashing_host.py`: a program for tests of quarantine.

Everything but the program of the hosts is the real service.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tierlog.actors.cli import main
from tierlog.actors.supervisor import service

_real = service._host_command


def _crashing(options: service.ServiceOptions, store_id: bytes, control: str, host: str) -> Sequence[str]:
    """The real command with another program in place of the host's module."""
    command = list(_real(options, store_id, control, host))
    at = command.index("-m")
    return [*command[:at], str(Path(__file__).with_name("crashing_host.py")), *command[at + 2 :]]


if __name__ == "__main__":
    service._host_command = _crashing
    sys.exit(main())
