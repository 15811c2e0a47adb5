"""How the command line says things."""

from __future__ import annotations

import pytest

from support.command_line import NAME, Run
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
    assert run("backup", "first").out == "backup first: 1 segment with 1 chunk and 1 B\n"
    assert "1 segment with 1 B, 0 B of it unflushed" in run("doctor").out
