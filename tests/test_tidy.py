"""Checks of the text itself: sizes, charters, leftovers, links, and rule numbers that code, docs and tests
share.

Each test gathers every violation before it fails, so that one run shows all there is to mend.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("actors", "journal", "spark_bridge", "storage_backends", "testing")
PROGRAMS = ("benchmarks", "examples", "scripts", "tests")
TEXTS = ("*.py", "*.md", "*.toml", "*.sh", "*.cfg", "*.in")

MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
LINE_MAX = 110

RULE = re.compile(r"\b([WCSFGJAHTVMRPKLDBE]\d{1,2})\b")
RULE_RANGE = re.compile(r"\b([WCSFGJAHTVMRPKLDBE])(\d{1,2})(?: to |-)\1(\d{1,2})\b")
DEFINITION = re.compile(r"^\s*(?:[-*|]\s+|#+\s+)?\**([WCSFGJAHTVMRPKLDBE]\d{1,2})\b", re.MULTILINE)
LEFTOVER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b|#.*\b(?:XX" r"X|HA" r"CK)\b")
PRIVATE_WORDS = re.compile(
    r"(?<![^\W_])(?:"
    r"aside|debts?|judg(?:e[ds]?|ing)|misfortunes?|owe[ds]?|surveys?|thaw(?:s|ed)?|told|vitals"
    r"|(?:a|each|failed|first|last|one)[ _]look"
    r")(?![^\W_])",
    re.IGNORECASE,
)
"""The field's terms are retry later, deferred work, check, fault, list, load, report, loop monitor. An
underscore ends a word, so that names of functions and of tests count too."""
LOCAL_PATH = re.compile(r"(?<![\w.])/(?:root|home|work|Users|mnt|opt)/[\w.]+")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def files(folders: tuple[str, ...], pattern: str = "*.py") -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob(pattern)]

    return sorted(path for path in found if "__pycache__" not in path.parts)


def source_modules() -> list[Path]:
    return [*sorted(ROOT.glob("*.py")), *files(PACKAGES)]


def python_files() -> list[Path]:
    return [*source_modules(), *files(PROGRAMS)]


def scripts() -> list[Path]:
    """The shell scripts, which carry no suffix."""
    return sorted(
        path
        for folder in ("scripts", ".ci")
        for path in (ROOT / folder).iterdir()
        if path.is_file() and not path.suffix
    )


def texts() -> list[Path]:
    found = [
        path
        for pattern in TEXTS
        for path in [*ROOT.glob(pattern), *files((*PACKAGES, *PROGRAMS, "docs"), pattern)]
    ]

    return sorted({*found, *scripts()})


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@attrs.frozen
class Facts:
    """What the tests ask of a module's syntax tree, which itself is too large to keep."""

    charter: str
    functions: list[tuple[str, int]]
    """``line name``, and the number of lines."""
    classes: list[str]
    skips_without_reason: list[int]
    """Line numbers."""


@cache
def facts_of(path: Path) -> Facts:
    tree = ast.parse(text_of(path), filename=str(path))
    nodes = list(ast.walk(tree))
    return Facts(
        charter=(ast.get_docstring(tree) or "").strip(),
        functions=[
            (f"{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ],
        classes=[node.name for node in nodes if isinstance(node, ast.ClassDef)],
        skips_without_reason=list(skips_without_reason(nodes)),
    )


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def places(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """Where a pattern occurs, as ``file:line: match``."""
    found = []
    for path in paths:
        for number, line in enumerate(text_of(path).splitlines(), 1):
            found += [f"{name(path)}:{number}: {match[0]}" for match in pattern.finditer(line)]

    return found


def rules_in(paths: list[Path]) -> set[str]:
    single = {rule for path in paths for rule in RULE.findall(text_of(path))}
    ranges = [found for path in paths for found in RULE_RANGE.findall(text_of(path))]

    return single | {
        f"{letter}{number}" for letter, first, last in ranges for number in range(int(first), int(last) + 1)
    }


def rules_defined() -> set[str]:
    return {rule for path in files(("docs/protocols",), "*.md") for rule in DEFINITION.findall(text_of(path))}


def none(violations: Iterable[object]) -> None:
    """Fail with one violation a line."""
    found = sorted(str(violation) for violation in violations)

    assert not found, "\n" + "\n".join(found)


def test_no_module_is_too_long_to_read_in_one_go() -> None:
    lengths = {name(path): len(text_of(path).splitlines()) for path in python_files()}

    none(f"{path}: {lines} lines" for path, lines in lengths.items() if lines > MODULE_LINES_MAX)


def test_no_function_is_too_long_to_keep_in_mind() -> None:
    lengths = {
        f"{name(path)}:{function}": lines
        for path in python_files()
        for function, lines in facts_of(path).functions
    }

    none(f"{place}: {lines} lines" for place, lines in lengths.items() if lines > FUNCTION_LINES_MAX)


def test_every_source_module_opens_with_its_charter() -> None:
    none(name(path) for path in source_modules() if not facts_of(path).charter)


def test_nothing_is_left_for_later() -> None:
    none(places(LEFTOVER, texts()))


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    none(places(LOCAL_PATH, texts()))


def test_every_skip_gives_its_reason() -> None:
    none(
        f"{name(path)}:{line}"
        for path in files(("tests", "testing"))
        for line in facts_of(path).skips_without_reason
    )


def skips_without_reason(nodes: list[ast.AST]) -> Iterator[int]:
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in SKIP_NAMES and ast.unparse(node) in SKIPS:
            call = calls.get(id(node))
            if call is None or not gives_reason(call):
                yield node.lineno


SKIPS = ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail", "pytest.skip", "pytest.xfail")
SKIP_NAMES = {each.rpartition(".")[2] for each in SKIPS}


def gives_reason(call: ast.Call) -> bool:
    # `skipif` takes its condition first; the others may give the reason as their first argument.
    positional = bool(call.args) and not ast.unparse(call.func).endswith(("skipif", "mark.xfail"))

    return positional or any(keyword.arg == "reason" for keyword in call.keywords)


def test_every_rule_that_code_cites_is_written_down() -> None:
    none(rules_in(source_modules()) - rules_defined())


def test_every_rule_that_code_cites_is_cited_by_a_test() -> None:
    tests = [path for path in files(("tests", "testing")) if path != Path(__file__)]
    cited = re.compile(r"_([wcsfgjahtvmrpkldbe]\d{1,2})_")
    in_names = {rule.upper() for path in tests for rule in cited.findall(text_of(path))}
    none(rules_in(source_modules()) - rules_in(tests) - in_names)


def test_every_rule_that_is_written_down_is_cited_by_code() -> None:
    none(rules_defined() - rules_in(source_modules()))


def test_the_field_has_other_words_for_these() -> None:
    """Prose and names use the terms of the glossary. Exempt are the examples of docs/STYLE.md and the table
    of names that were replaced."""
    exempt = {"STYLE.md", "14.changed.md", "test_tidy.py"}
    none(places(PRIVATE_WORDS, [path for path in texts() if path.name not in exempt]))


def test_no_two_statistics_classes_share_a_name() -> None:
    """Metrics are named after them."""
    classes = [each for path in source_modules() for each in facts_of(path).classes]

    none({kind for kind in classes if kind.endswith("Statistics") and classes.count(kind) > 1})


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *files(("docs",), "*.md")]


def test_every_link_between_documents_leads_somewhere() -> None:
    links = [(path, *found) for path in documents() for found in LINK.findall(text_of(path))]

    none(
        f"{name(path)}: {target}#{anchor}"
        for path, target, anchor in links
        if not leads_somewhere(path.parent / target if target else path, anchor)
    )


def test_every_test_that_a_document_names_exists() -> None:
    """A name of a file of tests, or of a test."""
    paths = files(("tests",))
    known = {path.stem for path in paths}
    for path in paths:
        known.update(re.findall(r"def (test_\w+)", text_of(path)))

    none(
        f"{name(path)}: {test}"
        for path in documents()
        for test in re.findall(r"\btest_\w+", text_of(path))
        if test not in known and not (ROOT / "tests" / test).is_dir()
    )


def mapping_pages() -> list[Path]:
    """What stands here for each mechanism of a design that tierlog follows."""
    return sorted(path for pattern in ("pdp-*.md", "rfc-*.md") for path in (ROOT / "docs").glob(pattern))


def test_every_rule_that_a_mapping_cites_is_written_down() -> None:
    none(
        f"{name(path)}: {rule}"
        for path in mapping_pages()
        for cell in re.findall(r"\| ([A-Z]\d[^|]*) (?=\|)", text_of(path))
        for rule in set(RULE.findall(cell)) - rules_defined()
    )


def test_every_file_that_a_mapping_names_exists() -> None:
    """By its path, or by its end."""
    paths = [f"/{name(path)}" for path in python_files()]

    none(
        f"{name(path)}: {file}"
        for path in mapping_pages()
        for file in re.findall(r"`([\w./]+(?:\.py|/))`", text_of(path))
        if not any(f"/{file}" in path for path in paths)
    )


def test_every_mechanism_that_stands_for_one_has_a_rule_code_and_a_test() -> None:
    """In the tables that have such columns; of what has nothing to stand for it the cells may be empty."""
    incomplete = []
    for path in mapping_pages():
        columns: list[str] = []
        for line in text_of(path).splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if not cells or len(columns) != len(cells):
                columns = cells
            elif "" in cells and not any(cell.startswith("not here") for cell in cells):
                incomplete.append(f"{name(path)}: {line}")

    none(incomplete)


def leads_somewhere(path: Path, anchor: str) -> bool:
    if not anchor or not path.exists():
        return path.exists()

    headings = (re.sub(r"[^\w\s-]", "", heading).lower() for heading in HEADING.findall(text_of(path)))
    return anchor in {heading.strip().replace(" ", "-") for heading in headings}


def test_documents_have_short_lines() -> None:
    """Rows of tables cannot be broken. News have one line for each change, so that git can merge them."""
    paths = [path for path in documents() if path.parent.name != "changes"]

    none(
        f"{name(path)}:{number}"
        for path in paths
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if len(line) > LINE_MAX and not line.lstrip().startswith("|")
    )


def test_the_map_of_folders_names_every_package() -> None:
    architecture = text_of(ROOT / "docs" / "ARCHITECTURE.md")
    packages = {name(path.parent) for path in files(PACKAGES) if path.name == "__init__.py"}

    none(package for package in packages if f"{package}/" not in architecture)


def test_the_map_of_folders_names_every_mapping_page() -> None:
    architecture = text_of(ROOT / "docs" / "ARCHITECTURE.md")

    none(path.name for path in mapping_pages() if f"({path.name})" not in architecture)
