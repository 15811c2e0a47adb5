"""Runs a chaos script from a fresh clone: with this Python if it has tierlog, or through ``scripts/chaos``,
which makes an environment first. Imports only the standard library."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NEEDED = ("anyio", "attrs", "httpx", "rich", "uvloop")
_SPARK_NEEDED = ("pandas", "pyarrow", "pyspark")


def is_ready(name: str) -> bool:
    """Whether this Python has what the script needs, and this clone's tierlog."""
    found = importlib.util.find_spec("tierlog")
    here = found is not None and found.origin is not None and Path(found.origin).resolve().parent == ROOT
    return here and all(
        importlib.util.find_spec(needed) is not None
        for needed in (*_NEEDED, *(_SPARK_NEEDED if name == "spark" else ()))
    )


def run(name: str, text: str) -> int:
    """Run ``scripts/chaos_<name>.py``, whose help is ``text``; returns the exit status."""
    if not is_ready(name):
        os.execv(ROOT / "scripts" / "chaos", ["chaos", name, *sys.argv[1:]])
    module = importlib.import_module(f"chaos_parts.{name}")
    status: int = module.main(text, sys.argv[1:])
    return status
