"""The longest lag of the event loop in the last minute."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from trio.testing import MockClock

from support.stores import CONFIG
from tierlog import open_store
from tierlog.actors.kernel.loop_lag import INTERVAL, WINDOW, LoopLag

pytestmark = pytest.mark.anyio
CLOCK = MockClock(autojump_threshold=0)


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": CLOCK})], ids=["trio-virtual"])
async def test_a_step_that_holds_up_the_loop_is_seen_for_a_minute() -> None:
    lag = LoopLag()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lag.watch)
        await anyio.sleep(1)
        assert lag.statistics().lag_max_seconds == pytest.approx(0, abs=1e-6)

        CLOCK.jump(0.7)
        await anyio.sleep(WINDOW - 1)
        assert 0.7 - INTERVAL <= lag.statistics().lag_max_seconds <= 0.7

        await anyio.sleep(2)
        assert lag.statistics().lag_max_seconds == pytest.approx(0, abs=1e-6)
        tasks.cancel_scope.cancel()


def test_the_longest_lag_is_followed_by_the_longest_after_it() -> None:
    lag = LoopLag()
    for second, late in enumerate([0.1, 0.5, 0.2, 0.3, 0.1]):
        lag.note(float(second), late)

    found: Callable[[], float] = lambda: lag.statistics().lag_max_seconds  # noqa: E731
    assert found() == 0.5
    lag.note(WINDOW + 1.5, 0.0)
    assert found() == 0.3
    lag.note(WINDOW + 3.5, 0.0)
    assert found() == 0.1


async def test_a_store_reports_it(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        await anyio.sleep(0)
        time.sleep(3 * INTERVAL)
        while not (lag := store.statistics().event_loop) or lag.lag_max_seconds < INTERVAL:
            await anyio.sleep(INTERVAL)

        [shown] = re.findall(rb"^tierlog_event_loop_lag_max_seconds (\S+)$", store.metrics(), re.MULTILINE)
        assert float(shown) >= INTERVAL
