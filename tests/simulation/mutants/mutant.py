"""A mutant: one planted protocol bug, as exact replacements in the package's source.

Owns: the value, and what is checked about it against a source tree. Does not own: the bugs
(``catalogue_*.py``), nor the copy that they are planted in (``apply.py``).

An edit names text that must occur exactly once in its file. A refactoring that moves or rewrites that text
makes the mutant unsound, and a test of the whole catalogue says so at once: a bug that cannot be planted any
more must not silently leave the score.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import attrs


class UnsoundMutant(Exception):
    """It cannot be planted in this source: adapt its edits to the code as it is now."""


@attrs.frozen
class Edit:
    file: str
    """Relative to the package's folder."""
    before: str
    after: str

    def apply(self, text: str) -> str:
        """``text`` with the bug; ``UnsoundMutant`` unless ``before`` is there exactly once."""
        found = text.count(self.before)
        if found != 1:
            raise UnsoundMutant(f"{self.file} holds {found} times, and not once: {self.before!r}")
        return text.replace(self.before, self.after)


@attrs.frozen
class Mutant:
    name: str
    story: str
    """What goes wrong for a user, in one sentence."""
    rule: str
    """The rule or hole of the design that forbids it."""
    edits: tuple[Edit, ...]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(edit.file for edit in self.edits))

    def mutated(self, package: Path) -> Iterator[tuple[Path, str]]:
        """Each file that it changes, with its new text; ``UnsoundMutant`` if one cannot be changed or would
        be no Python."""
        for name in self.files:
            path = package / name
            if not path.is_file():
                raise UnsoundMutant(f"{self.name}: there is no {name}")

            text = path.read_text(encoding="utf-8")
            try:
                for edit in self.edits:
                    text = edit.apply(text) if edit.file == name else text
                ast.parse(text, filename=name)
            except (UnsoundMutant, SyntaxError) as error:
                raise UnsoundMutant(f"{self.name}: {error}") from error
            yield path, text


def mutant(name: str, story: str, rule: str, file: str, before: str, after: str) -> Mutant:
    """The usual mutant: one edit."""
    return Mutant(name, story, rule, (Edit(file, before, after),))
