#!/usr/bin/env python3
"""`scripts/chaos machines`, with any Python; see `--help`."""

from chaos_parts.bootstrap import main

if __name__ == "__main__":
    main(__file__)
