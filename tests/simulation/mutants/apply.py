"""A copy of the installed package in which bugs are planted and taken out again.

Owns: what is copied, the edits in the copy, and that a copy without a mutant is exactly the original. Does
not own: processes that run it (``child.py``). The original is only read.

The copy is compiled once, because many processes start on it. A compiled module counts only if it was made
from the very source that is there (its hash is compared): one of the same size from the same second must not
be taken for the mutated one.
"""

from __future__ import annotations

import compileall
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from py_compile import PycInvalidationMode

from .mutant import Mutant

LEFT_OUT = frozenset(("tests", "docs", "benchmarks", "scripts", "build", "dist", "__pycache__"))
"""Folders beside the package's own when it runs from a checkout; hidden ones are left out too."""
SUFFIXES = (".py", ".typed")


def installed() -> Path:
    """The folder of the package that this module belongs to."""
    return Path(__file__).resolve().parents[3]


def _ignored(folder: str, names: Collection[str]) -> list[str]:
    here = Path(folder)
    return [name for name in names if name.startswith(".") or name in LEFT_OUT or not _is_source(here / name)]


def _is_source(path: Path) -> bool:
    return path.is_dir() or path.suffix in SUFFIXES


class PackageCopy:
    """The package in ``folder``, under the name it is imported by."""

    def __init__(self, folder: Path, source: Path | None = None, name: str = "tierlog") -> None:
        """Copies; ``folder`` must not hold a copy yet."""
        self.folder = folder
        self.package = folder / name
        shutil.copytree(installed() if source is None else source, self.package, ignore=_ignored)
        compileall.compile_dir(self.package, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """With the bug in it; ``UnsoundMutant``, and nothing is changed, if it cannot be planted."""
        changes = list(mutant.mutated(self.package))
        originals = [(path, path.read_text(encoding="utf-8")) for path, _ in changes]
        try:
            for path, text in changes:
                path.write_text(text, encoding="utf-8")
            yield
        finally:
            for path, text in originals:
                path.write_text(text, encoding="utf-8")
