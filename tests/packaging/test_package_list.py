"""The list of packages in pyproject.toml is what the folders hold: a package that it forgets would be missing
from the wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("actors", "journal", "spark_bridge", "storage_backends", "testing")


def packages_in_tree() -> set[str]:
    folders = {path.parent for source in SOURCES for path in (ROOT / source).rglob("*.py")}

    # What Spark looks for has a top-level name of its own.
    folders.remove(ROOT / "spark_bridge" / "discovery" / "pyspark_tierlog")
    names = {".".join(("tierlog", *folder.relative_to(ROOT).parts)) for folder in folders}
    return {"tierlog", "pyspark_tierlog", *names}


def test_every_source_folder_is_in_the_list_and_nothing_else() -> None:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert set(tables["tool"]["setuptools"]["packages"]) == packages_in_tree()


def test_every_source_folder_is_a_package() -> None:
    """Without ``__init__.py`` a folder works in the tree and is not seen by the import contracts."""
    folders = {path.parent for source in SOURCES for path in (ROOT / source).rglob("*.py")}

    assert (
        sorted(str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file())
        == []
    )
