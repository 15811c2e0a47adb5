"""A real writer process, killed at random moments: everything that was acked to it is there, and it continues
where it was."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

import tierlog
from chaos_parts.ledger import Ledger
from support.event_writer import CONFIG, WriterProcess, check

pytestmark = pytest.mark.anyio

SEED = int(os.environ.get("TIERLOG_SEED", "1"))


async def kill_again_and_again(folder: Path, rounds: int, seed: int, longest: int) -> None:
    """Start the writer, kill it after some records, check, and start it again on what it left; the last check
    is of a store that was closed well."""
    random, ledger = Random(seed), Ledger()
    for number in range(rounds):
        writer = WriterProcess(ledger, folder, seed * 1000 + number)
        writer.receive(1 + random.randrange(longest))
        writer.kill()
        if number % 3 == 1:
            async with tierlog.open_store(folder, config=CONFIG) as store:
                await check(store, ledger)

    async with tierlog.open_store(folder, config=CONFIG) as store:
        events = await check(store, ledger)
        await store.flush()
    async with tierlog.open_store(folder, config=CONFIG) as store:
        assert await check(store, ledger) == events


@pytest.mark.one_loop
@pytest.mark.timeout(120)
async def test_a_writer_killed_at_random_moments_loses_nothing_acked(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "data", rounds=3, seed=SEED, longest=300)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 8))
async def test_many_more_kills(tmp_path: Path, seed: int) -> None:
    await kill_again_and_again(tmp_path / "data", rounds=25, seed=seed, longest=1000)
