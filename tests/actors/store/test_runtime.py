"""A process that serves some of a store's containers, on order."""

from __future__ import annotations

import pytest

from support.runtime_site import Site
from tierlog.actors.store.runtime import serve
from tierlog.storage_backends.base.errors import (
    ClosedError,
    NotOwner,
)
from tierlog.storage_backends.base.names import container_of

pytestmark = pytest.mark.anyio

FIRST = next(name for name in ("s0", "s1", "s2", "s3", "s4") if container_of(name, 2) == 0)
SECOND = next(name for name in ("s0", "s1", "s2", "s3", "s4") if container_of(name, 2) == 1)


async def test_a_container_that_is_not_served_here_has_another_owner() -> None:
    async with Site().runtime() as runtime:
        await runtime.open(0)
        await runtime.store.create_segment(FIRST)
        with pytest.raises(NotOwner, match="container 1 is not served here"):
            await runtime.store.create_segment(SECOND)
        assert await runtime.store.list_segments() == [FIRST]
        assert [host.container for host in runtime.store.statistics().containers] == [0]


async def test_a_closed_container_is_opened_elsewhere_with_all_that_was_acked() -> None:
    site = Site()
    async with site.runtime() as here, site.runtime() as there:
        await here.open(0)
        await here.store.create_segment(FIRST)
        assert await here.store.append(FIRST, b"moved") == 0
        await here.close(0)
        assert not here.serves(0)
        with pytest.raises(NotOwner):
            await here.store.read(FIRST, 0, 10)
        await there.open(0)
        assert await there.store.read(FIRST, 0, 10) == b"moved"


async def test_a_container_is_served_once() -> None:
    async with Site().runtime() as runtime:
        await runtime.open(0)
        with pytest.raises(RuntimeError, match="served here already"):
            runtime.begin(0)
        await runtime.close(1)
        await runtime.close(0)
        await runtime.close(0)


async def test_the_end_closes_what_is_open() -> None:
    site = Site()
    async with site.runtime() as runtime:
        await runtime.open(0)
        await runtime.open(1)
    with pytest.raises(ClosedError):
        await runtime.store.create_segment(FIRST)
    async with serve(site.parts()) as store:
        await store.create_segment(FIRST)
        await store.create_segment(SECOND)
