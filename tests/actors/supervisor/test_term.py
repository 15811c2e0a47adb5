"""One supervisor at a time (V1): the lock, and the term that only grows."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.folder.paths import StoreFolder, check_path
from tierlog.actors.supervisor.term import claim_term
from tierlog.storage_backends.base.errors import NotOwner, StoreMismatch, Unavailable
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio
IDENTITY = StoreIdentity(bytes(16), b"l" * 16, 2, 0)


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolder:
    return check_path(tmp_path)


async def test_v1_each_supervisor_has_a_higher_term_than_all_before(folder: StoreFolder) -> None:
    numbers = []
    for _ in range(3):
        async with claim_term(LocalFiles(), folder, IDENTITY) as term:
            await term.check()
            numbers.append(term.number)
    assert numbers == [1, 2, 3]


async def test_v1_while_one_lives_no_other_starts(folder: StoreFolder) -> None:
    async with claim_term(LocalFiles(), folder, IDENTITY):
        with pytest.raises(Unavailable, match=f"process {os.getpid()} already supervises this store"):
            async with claim_term(LocalFiles(), folder, IDENTITY):
                raise AssertionError("there are two")


async def test_v1_an_overtaken_supervisor_learns_of_it(folder: StoreFolder) -> None:
    async with claim_term(LocalFiles(), folder, IDENTITY) as earlier:
        await anyio.Path(folder.path, "supervisor", "lock").unlink()
        async with claim_term(LocalFiles(), folder, IDENTITY) as later:
            await later.check()
            with pytest.raises(NotOwner, match="its term is 2, this one's 1"):
                await earlier.check()


async def test_another_stores_register_is_refused(folder: StoreFolder) -> None:
    async with claim_term(LocalFiles(), folder, IDENTITY):
        pass
    with pytest.raises(StoreMismatch):
        async with claim_term(LocalFiles(), folder, StoreIdentity(bytes(16), b"x" * 16, 2, 0)):
            raise AssertionError("it was taken")
    async with claim_term(LocalFiles(), folder, IDENTITY) as term:
        assert term.number == 2, "the lock was freed"
