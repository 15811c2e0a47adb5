"""How the command line says things."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from support.command_line import NAME, Run
from tierlog import Unavailable
from tierlog.actors.cli import output
from tierlog.actors.cli.output import count


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 chunks"), (1, "1 chunk"), (2, "2 chunks"), (21, "21 chunks")]
)
def test_counts_of_one_are_singular(number: int, text: str) -> None:
    assert count(number, "chunk") == text


def test_a_report_on_single_items_uses_the_singular(run: Run) -> None:
    run("segment", "create", NAME)
    run("segment", "append", NAME, "--data-text", "x")
    run("chunks", "defrag", NAME)

    assert "\n1 byte from 0 on, 0 not flushed\n1 chunk, open," in run("chunks", "layout", NAME).out
    assert run("chunks", "verify").out.splitlines()[0] == "read 1 chunk of 1 segment with 1 B"
    assert "1 segment with 1 B, 0 B of it unflushed" in run("doctor").out


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (("segment", "ls", "--long"), {"length", "state", "name"}),
        (("chunks", "ls"), {"length", "use", "segment", "name"}),
        (("chunks", "layout", NAME), {"start", "length", "chunk"}),
        (("doctor",), {"container", "epoch", "segments", "bytes", "missing"}),
        (("backup", "ls"), {"created", "name"}),
    ],
)
def test_tables_fit_a_terminal_of_60_columns_and_lose_only_what_matters_least(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], kept: set[str]
) -> None:
    run("segment", "create", NAME)
    run("segment", "append", NAME, "--data-text", "x" * 2000)
    run("chunks", "defrag", NAME)
    run("backup", "first")
    monkeypatch.setattr(output, "terminal_width", lambda: 60)

    shown = run(*arguments).out.splitlines()

    heads = [index for index, line in enumerate(shown) if len(kept & set(line.split())) > 1]
    assert kept <= {word for index in heads for word in shown[index].split()}
    for index in heads:
        assert max(len(line) for line in shown[index : index + 3]) <= 60


def test_texts_are_wrapped_whole_where_no_column_may_be_left_out() -> None:
    target, transaction = "a-long-target/" * 5, "a-long-transaction-" * 4
    screen = Console(file=io.StringIO(), width=60)
    screen.print(output.fitted(("bytes", "target", "id"), [(7, target, transaction)], 60), crop=False)
    shown = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]  # a StringIO

    assert max(map(len, shown)) <= 60
    start = shown[0].index("id")
    assert "".join(line[:start] for line in shown[1:]).replace(" ", "") == f"7{target}"
    assert "".join(line[start:] for line in shown[1:]).replace(" ", "") == transaction


@pytest.mark.parametrize("columns", [60, 80])
def test_the_doctor_fits_a_terminal(run: Run, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the folder's path, which may have any length."""
    run("segment", "create", NAME)
    monkeypatch.setattr(output, "terminal_width", lambda: columns)
    lines = run("doctor").out.splitlines()

    assert [line.split()[0] for line in lines[:3]] == ["store", "folder", "made"]
    assert max(len(line) for line in lines if not line.startswith("folder ")) <= columns


def test_a_table_that_goes_to_a_pipe_is_aligned_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the work of fitting it: 20,000 rows took 7 s."""
    output.print_table(("length", "name"), [(7, "表/x"), (1000, "b" * 200)])
    assert capsys.readouterr().out == f"length  name\n     7  表/x\n  1000  {'b' * 200}\n"


def test_a_long_table_is_printed_as_its_rows_come(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_FITTED_MAX", 2)
    shown = []
    with pytest.raises(Unavailable), output.table(("length", "name")) as add:
        for rows in ([(7, "a"), (8, "b")], [(9, "c")], [(10**8, "d")], [(1, "e")]):
            add(rows)
            shown.append(capsys.readouterr().out)
        raise Unavailable("on the way")
    assert shown == [
        "",  # it may have few rows, which fit a terminal
        "length  name\n     7  a\n     8  b\n     9  c\n",
        "100000000  d\n",
        "        1  e\n",
    ]
    assert capsys.readouterr().out == ""


def test_a_short_table_that_fails_has_the_rows_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unavailable), output.table(("length", "name")) as add:
        add([(7, "a")])
        raise Unavailable("on the way")
    assert capsys.readouterr().out == "length  name\n     7  a\n"
    with pytest.raises(Unavailable), output.table(("length", "name")):
        raise Unavailable("at the beginning")
    assert capsys.readouterr().out == ""
