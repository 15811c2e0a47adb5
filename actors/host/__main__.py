"""``python -m tierlog.actors.host``: the entry of a host process."""

import sys

from ..kernel.process_memory import importing, skip_final_collection

with importing():
    from .main import main

if __name__ == "__main__":
    code = main()
    skip_final_collection()
    sys.exit(code)
