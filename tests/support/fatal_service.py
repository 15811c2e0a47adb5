"""`tierlog serve` whose hosts are `fatal_host.py`: a program for tests of quarantine.

Owns: which program its hosts are. Everything else is the real service.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tierlog.actors.cli import main
from tierlog.actors.supervisor import service

_real = service._host_command


def _fatal(options: service.ServiceOptions, control: str, host: str) -> Sequence[str]:
    """The real command with another program in the place of the host's module."""
    command = list(_real(options, control, host))
    at = command.index("-m")
    return [*command[:at], str(Path(__file__).with_name("fatal_host.py")), *command[at + 2 :]]


if __name__ == "__main__":
    service._host_command = _fatal
    sys.exit(main())
