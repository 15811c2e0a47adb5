"""Runs a chaos script from a fresh clone: with this Python if it has tierlog, or through ``scripts/chaos``,
which makes an environment first. Imports only the standard library."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NEEDED = ("anyio", "attrs", "httpx", "rich", "uvloop")
_SPARK_NEEDED = ("pandas", "pyarrow", "pyspark")


def is_ready(name: str) -> bool:
    """Whether this Python has what the script needs, and this clone's tierlog."""
    needed = _NEEDED + (_SPARK_NEEDED if name == "spark" else ())
    found = find_spec("tierlog")
    here = found is not None and found.origin is not None and Path(found.origin).resolve().parent == ROOT
    return here and all(find_spec(package) is not None for package in needed)


def main(script: str) -> None:
    """Run ``chaos_parts.<name>`` for the script ``chaos_<name>.py``, and exit."""
    name = Path(script).stem.removeprefix("chaos_")
    if not is_ready(name):
        os.execv(ROOT / "scripts" / "chaos", ["chaos", name, *sys.argv[1:]])
    sys.exit(importlib.import_module(f"chaos_parts.{name}").main(sys.argv[1:]))
