"""What one open transaction may pile up (rule T9), which the configuration says."""

from __future__ import annotations

from pathlib import Path

import pytest

import tierlog
from support.stores import config
from support.transactions import TARGET, begun
from tierlog import InvalidArgument, StagedPart, TransactionState
from tierlog.actors.settings.configuration import TransactionsConfig

pytestmark = pytest.mark.anyio


async def test_t9_the_staged_segments_of_a_transaction_are_limited(tmp_path: Path) -> None:
    settings = config(transactions=TransactionsConfig(staged_max=2))
    async with tierlog.open_store(tmp_path / "s", containers=1, config=settings) as store:
        await store.create_segment(TARGET)
        parts = await begun(store, "t", a=b"one", b=b"two")
        with pytest.raises(
            InvalidArgument, match=r"has 2 staged segments, and transactions\.staged_max allows no more"
        ):
            await store.stage_segment(TARGET, "t", "c")

        # Those that there are can be asked for again, other transactions have their own, and it can be
        # committed.
        info = await store.transaction_info(TARGET, "t")
        assert (info.state, info.staged) == (TransactionState.OPEN, tuple(parts))
        assert await store.stage_segment(TARGET, "t", "a") == parts[0].name
        assert await begun(store, "other", c=b"x") == [StagedPart(f"{TARGET}#txn.other.c", 1)]
        assert (await store.commit_transaction(TARGET, "t", parts)).applied
