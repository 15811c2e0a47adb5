"""Context managers of stores and clients."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest

import tierlog
from support.stores import CONFIG
from tierlog import ClosedError
from tierlog.actors.kernel.contexts import PlainContext

pytestmark = pytest.mark.anyio


async def test_a_context_manager_is_entered_once(tmp_path: Path) -> None:
    opening = tierlog.open_store(tmp_path / "data", containers=1, config=CONFIG)
    async with opening as store:
        with pytest.raises(ClosedError, match="entered before: use another one, as `async with"):
            async with opening:
                pass
        await store.create_segment("s")
    with pytest.raises(ClosedError, match="entered before"):
        async with opening:
            pass

    connecting = PlainContext("with it", contextmanager(lambda: iter(()))())
    with pytest.raises(RuntimeError, match="didn't yield"), connecting:
        pass
    with pytest.raises(ClosedError, match="entered before"), connecting:
        pass
