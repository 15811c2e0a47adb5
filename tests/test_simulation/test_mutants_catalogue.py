"""Every planted bug can still be planted in the source as it is now.

A refactoring that moves the text an edit replaces fails here, so that no bug is lost from the score without
notice.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation.mutants import catalogue
from simulation.mutants.catalogue import CATALOGUE
from simulation.mutants.mutant import Mutant, UnsoundMutant, mutant

import tierlog

PACKAGE = Path(tierlog.__file__).parent
LEAST = 45
EDIT_CHARACTERS = 200


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_planted_bug_changes_this_source_into_other_source_that_compiles(name: str) -> None:
    changes = list(CATALOGUE[name].mutated(PACKAGE))

    assert changes
    for path, text in changes:
        assert text != path.read_text(encoding="utf-8")
        compile(text, str(path), "exec", dont_inherit=True)


def test_every_planted_bug_tells_its_story_and_its_rule() -> None:
    for planted in CATALOGUE.values():
        assert planted.rule, planted.name
        assert len(planted.story.split()) > 5, planted.name
        assert not planted.story.endswith("."), planted.name


def test_an_edit_hangs_on_little_text_so_that_changes_beside_it_do_no_harm() -> None:
    assert not [
        edit for planted in CATALOGUE.values() for edit in planted.edits if len(edit.before) > EDIT_CHARACTERS
    ]


def test_there_are_bugs_enough_and_no_two_do_the_same() -> None:
    edits = [planted.edits for planted in CATALOGUE.values()]

    assert len(CATALOGUE) >= LEAST
    assert len(set(edits)) == len(edits)


def test_no_bug_is_planted_in_the_tests_own_tools() -> None:
    """The simulator must not be changed by a mutant: it would judge itself."""
    assert not [
        name for planted in CATALOGUE.values() for name in planted.files if name.startswith("testing/")
    ]


def test_two_bugs_of_one_name_are_refused() -> None:
    planted = mutant("twin", "a story", "C1", "store.py", "a", "b")

    with pytest.raises(ValueError, match="twin"):
        catalogue._by_name([planted, planted])


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "store.py").write_text("synced = True\nacked = synced\n", encoding="utf-8")
    return tmp_path


def planted_in(package: Path, before: str, after: str, file: str = "store.py") -> dict[Path, str]:
    return dict(mutant("m", "a story", "C1", file, before, after).mutated(package))


def test_only_the_text_of_the_edit_changes(package: Path) -> None:
    changed = planted_in(package, "acked = synced", "acked = True")

    assert changed == {package / "store.py": "synced = True\nacked = True\n"}


@pytest.mark.parametrize(
    "before, after, file, told",
    [
        ("gone", "x", "store.py", "holds 0 times"),
        ("synced", "x", "store.py", "holds 2 times"),
        ("= True", "= (", "store.py", "never closed"),
        ("synced", "x", "moved.py", "no moved.py"),
    ],
)
def test_a_bug_that_does_not_fit_the_source_is_refused_and_says_why(
    package: Path, before: str, after: str, file: str, told: str
) -> None:
    with pytest.raises(UnsoundMutant, match=told) as refused:
        planted_in(package, before, after, file)

    assert str(refused.value).startswith("m: ")


def test_edits_of_one_file_are_made_one_after_the_other(package: Path) -> None:
    both = Mutant(
        "m",
        "a story",
        "C1",
        (
            *mutant("a", "", "", "store.py", "synced = True", "synced = False").edits,
            *mutant("b", "", "", "store.py", "acked = synced", "acked = True").edits,
        ),
    )

    assert dict(both.mutated(package)) == {package / "store.py": "synced = False\nacked = True\n"}
