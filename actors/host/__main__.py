"""``python -m tierlog.actors.host``: the entry of a host process."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
