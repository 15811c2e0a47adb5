"""Two real processes fight over one folder: each opening fences the other, which keeps appending until it
notices."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tierlog
from support.event_acks import Acks, start_writer, whole_lines
from support.event_writer import CONFIG

pytestmark = pytest.mark.anyio


def receive_until(writer: subprocess.Popen[str], acks: int) -> str:
    """The output of a writer until it contains ``acks`` acks."""
    assert writer.stdout is not None
    output = ""
    while output.count("app/") < acks:
        line = writer.stdout.readline()
        assert line, f"the writer ended early: {writer.stderr.read() if writer.stderr else ''}"
        output += line
    return output


def end(writer: subprocess.Popen[str], output: str) -> list[str]:
    """The rest of what a fenced writer says. It must end by itself, and say why."""
    assert writer.stdout is not None
    assert writer.stderr is not None
    with writer:
        # Through the same buffer as before: `communicate` would pass over what `readline` has taken in
        # already.
        lines = whole_lines(output + writer.stdout.read())
        errors = writer.stderr.read()
    assert writer.returncode == 0, errors
    assert lines[-1] == "fenced", (lines[-3:], errors)
    return lines


async def fight(folder: Path, rounds: int) -> None:
    acks = Acks()
    owner, output = start_writer(folder, 0, "a"), ""
    for number in range(1, rounds + 1):
        output += receive_until(owner, 30)
        challenger = start_writer(folder, number, "ab"[number % 2])
        received = receive_until(challenger, 1)
        assert acks.record("ab"[(number - 1) % 2], end(owner, output)) >= 30
        owner, output = challenger, received

    output += receive_until(owner, 30)
    async with tierlog.open_store(folder, config=CONFIG) as store:
        assert acks.record("ab"[rounds % 2], end(owner, output)) >= 30
        await acks.check(store)
        await store.flush()
    async with tierlog.open_store(folder, config=CONFIG) as store:
        held = await acks.check(store)
    assert held >= sum(last - first + 1 for (_, _, first), (last, _) in acks.acked.items())


@pytest.mark.one_loop  # the processes run on both loops
@pytest.mark.timeout(120)
async def test_two_processes_that_fence_each_other_lose_nothing_acked(tmp_path: Path) -> None:
    await fight(tmp_path / "data", rounds=5)


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_long_fight(tmp_path: Path) -> None:
    await fight(tmp_path / "data", rounds=40)
