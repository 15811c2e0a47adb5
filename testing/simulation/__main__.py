"""``python -m tierlog.testing.simulation``: the command ``tierlog simulate`` without its installed script.

Only the program itself does anything here: worker processes import this module too.
"""

from __future__ import annotations

import sys

from ...actors.cli import main

if __name__ == "__main__":
    sys.exit(main(["simulate", *sys.argv[1:]]))
