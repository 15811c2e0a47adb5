"""``python -m tierlog.actors.host``: the entry of a host process."""

import sys

from ..kernel.process_memory import importing, leave_the_rest_to_the_system

with importing():
    from .main import main

if __name__ == "__main__":
    code = main()
    leave_the_rest_to_the_system()
    sys.exit(code)
