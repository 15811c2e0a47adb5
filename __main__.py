"""The program ``tierlog``, also as ``python -m tierlog``.

Ctrl-C while the command line is imported ends the process without a traceback, because nothing is open yet.
"""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 130


def main() -> int:
    """Run the command line with the process's arguments; returns the exit code."""
    try:
        import signal  # takes a while itself

        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    from .actors.kernel.process_memory import importing

    with importing():
        from .actors.cli import main as run  # takes most of the time of a short command

    return run()


if __name__ == "__main__":
    sys.exit(main())
