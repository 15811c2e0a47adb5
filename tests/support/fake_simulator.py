"""A child that stands in for the simulator: a tiny package whose source says what happens to which seed.

Owns: the package, the bugs for it and the command. ``fate.py`` of the package holds ``FAILS`` (the seeds that
fail), and what else the child does; a mutant changes that text as it would change a store's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from simulation.mutants.child import Slice
from simulation.mutants.mutant import Mutant, mutant

SOUND = 'FAILS = ()\nEXIT = None\nHANGS = False\nSAYS = ""\n'

_CHILD = """\
import json, sys, time
sys.path.insert(0, sys.argv[1])
import fate

first, count = int(sys.argv[2]), int(sys.argv[3])
print(fate.SAYS, file=sys.stderr)
if fate.HANGS:
    time.sleep(600)
if fate.EXIT is not None:
    sys.exit(fate.EXIT)
failing = next((seed for seed in range(first, first + count) if seed in fate.FAILS), None)
run = count if failing is None else failing - first + 1
violation = None if failing is None else f"Broken: seed {failing}\\nthe second line"
print(json.dumps({"seed": failing, "seeds_run": run, "violation": violation}))
sys.exit(failing is not None)
"""


def fake_simulator(package: Path, part: Slice) -> Sequence[str]:
    return [sys.executable, "-S", "-c", _CHILD, str(package), str(part.first), str(part.count)]


def make_package(folder: Path, text: str = SOUND) -> Path:
    folder.mkdir()
    (folder / "fate.py").write_text(text, encoding="utf-8")
    return folder


def failing_at(*seeds: int) -> Mutant:
    return mutant(f"fails at {seeds}", "a story", "C1", "fate.py", "FAILS = ()", f"FAILS = {seeds!r}")


HARMLESS = mutant("harmless", "nobody can notice it", "C1", "fate.py", 'SAYS = ""', 'SAYS = "hello"')
ENDS_ODDLY = mutant("ends oddly", "a story", "C1", "fate.py", "EXIT = None", "EXIT = 3")
SAYS_NOTHING = mutant("says nothing", "a story", "C1", "fate.py", "EXIT = None", "EXIT = 0")
HANGS = mutant("hangs", "a story", "C1", "fate.py", "HANGS = False", "HANGS = True")
LOST = mutant("lost", "a story", "C1", "fate.py", "no such text", "")
