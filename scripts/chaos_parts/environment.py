"""Makes the chaos scripts run from a fresh clone: with the right Python, or through ``scripts/chaos``, which
makes its environment first.

Owns: finding out whether this Python has this repository's tierlog and what it needs. Imports nothing that a
bare Python does not have.
"""

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
    """Do what ``scripts/chaos_<name>.py`` promises, ``text`` being its help; returns the exit status."""
    if not is_ready(name):
        os.execv(ROOT / "scripts" / "chaos", ["chaos", name, *sys.argv[1:]])
    module = importlib.import_module(f"chaos_parts.{name}")
    status: int = module.main(text, sys.argv[1:])
    return status
