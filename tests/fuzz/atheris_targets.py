"""Coverage-guided fuzzing of one target: ``python -m fuzz.atheris_targets NAME FOLDER [libFuzzer options]``,
with ``tests`` on the path.

``FOLDER`` holds the corpus; the target's examples are written
into it first. ``test_coverage_guided.py`` starts one such process per target, because libFuzzer ends the
process that it ran in: with code 0 when its time is up, or with a report and the offending bytes in a file
when ``examine`` raised, hung or took too much memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tierlog"]):
    from fuzz.target import examine
    from fuzz.targets import TARGETS


def main(name: str, folder: str, *options: str) -> None:
    target = TARGETS[name]
    for number, data in enumerate((*target.examples, *target.hostile)):
        (Path(folder) / f"example-{number}").write_bytes(data)

    def fuzz(data: bytes) -> None:
        # It sees what is compared, and so learns to put right checksums behind anything: that is forgery, not
        # damage.
        examine(target, data, forged=True)

    atheris.Setup([sys.argv[0], folder, *options], fuzz)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
