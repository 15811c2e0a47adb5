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
        with pytest.raises(ClosedError, match="opened before: use another one, as `async with .* await"):
            async with opening:
                pass
        await store.create_segment("s")
    with pytest.raises(ClosedError, match="opened before"):
        async with opening:
            pass

    connecting = PlainContext("it", "make()", contextmanager(lambda: iter(()))())
    with pytest.raises(RuntimeError, match="didn't yield"), connecting:
        pass
    with pytest.raises(ClosedError, match="opened before"), connecting:
        pass


async def test_what_is_not_opened_says_how(tmp_path: Path) -> None:
    connecting = PlainContext("client", "make()", contextmanager(lambda: iter(["a client"]))())
    usage = r"use it as `with make\(\) as client` or `client = make\(\).open\(\)`"
    with pytest.raises(AttributeError, match=f"no 'append' before it is opened: {usage}"):
        connecting.append  # noqa: B018
    assert connecting.open() == "a client"

    opening = tierlog.open_store(tmp_path / "data", containers=1, config=CONFIG)
    usage = r"`async with tierlog.open_store\(...\) as store` or `store = await tierlog.open_store\(...\)`"
    with pytest.raises(AttributeError, match=usage):
        opening.append  # noqa: B018
