"""Two real processes fight over one folder: each opening fences the other, which keeps appending until it
notices."""

from __future__ import annotations

from pathlib import Path

import pytest

import tierlog
from chaos_parts.ledger import Ledger
from support.event_writer import CONFIG, WriterProcess, check

pytestmark = pytest.mark.anyio


async def fight(folder: Path, rounds: int) -> None:
    ledger = Ledger()
    owner = WriterProcess(ledger, folder, 0, "a")
    for number in range(1, rounds + 1):
        owner.receive(30)
        challenger = WriterProcess(ledger, folder, number, "ab"[number % 2])
        challenger.receive(1)
        owner.wait_until_fenced()
        owner = challenger
    owner.receive(30)
    async with tierlog.open_store(folder, config=CONFIG, take_over=True) as store:
        owner.wait_until_fenced()
        await check(store, ledger)
        await store.flush()
    async with tierlog.open_store(folder, config=CONFIG) as store:
        assert await check(store, ledger) >= ledger.acked


@pytest.mark.one_loop  # the processes run on both loops
@pytest.mark.timeout(120)
async def test_two_processes_that_fence_each_other_lose_nothing_acked(tmp_path: Path) -> None:
    await fight(tmp_path / "data", rounds=2)


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_long_fight(tmp_path: Path) -> None:
    await fight(tmp_path / "data", rounds=40)
