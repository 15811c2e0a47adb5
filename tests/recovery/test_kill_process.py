"""A real writer process, killed at random moments: everything that was acked to it is there, and it continues
where it was."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

import pytest

import tierlog
from support.event_acks import Acks, start_writer, whole_lines
from support.event_writer import CONFIG

pytestmark = pytest.mark.anyio

SEED = int(os.environ.get("TIERLOG_SEED", "1"))


async def kill_again_and_again(folder: Path, rounds: int, seed: int, longest: int) -> None:
    """Start the writer, kill it, check, and start it again on what it left; the last look is at a store that
    was closed well."""
    random, acks = Random(seed), Acks()
    for number in range(rounds):
        lines = run_and_kill(folder, seed * 1000 + number, random.randrange(longest))
        acks.record("w", lines)
        if number % 3 == 1:
            async with tierlog.open_store(folder, config=CONFIG) as store:
                await acks.check(store)

    assert len(acks.acked) > rounds, "the writer was always killed before it wrote: the test shows nothing"
    async with tierlog.open_store(folder, config=CONFIG) as store:
        held = await acks.check(store)
        await store.flush()
    async with tierlog.open_store(folder, config=CONFIG) as store:
        assert await acks.check(store) == held


def run_and_kill(folder: Path, seed: int, after: int) -> list[str]:
    """A writer that is killed when it has said ``after`` lines, wherever it is then; all that it said."""
    with start_writer(folder, seed) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        output = "".join(writer.stdout.readline() for _ in range(1 + after))
        writer.send_signal(signal.SIGKILL)
        output += writer.stdout.read()
        errors = writer.stderr.read()
    assert output.startswith("open\n"), errors
    assert "Traceback" not in errors
    return whole_lines(output)


@pytest.mark.timeout(120)
async def test_a_writer_killed_at_random_moments_loses_nothing_acked(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "data", rounds=5, seed=SEED, longest=300)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 8))
async def test_many_more_kills(tmp_path: Path, seed: int) -> None:
    await kill_again_and_again(tmp_path / "data", rounds=25, seed=seed, longest=1000)
