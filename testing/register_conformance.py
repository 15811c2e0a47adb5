"""``RegisterConformance``: the contract of ``Register`` as tests. Inherit from it and implement
``make_register``."""

from __future__ import annotations

from abc import ABC, abstractmethod

import anyio
import pytest

from ..journal.registers.contract import Register


class RegisterConformance(ABC):
    pytestmark = pytest.mark.anyio

    @abstractmethod
    async def make_register(self) -> Register:
        """Return a register; every call within one test must return the same cell."""

    async def test_a_register_that_was_never_written_has_no_value(self) -> None:
        assert await (await self.make_register()).load() is None

    async def test_raising_goes_above_the_value_and_above_the_floor(self) -> None:
        register = await self.make_register()

        assert [
            await register.raise_above(0),
            await register.raise_above(0),
            await register.raise_above(9),
        ] == [1, 2, 10]
        assert await register.raise_above(3) == 11
        assert await (await self.make_register()).load() == 11

    async def test_no_two_raises_get_the_same_value(self) -> None:
        """Read, add and write are one atomic step."""
        values: list[int] = []

        async def raise_often() -> None:
            register = await self.make_register()
            values.extend([await register.raise_above(0) for _ in range(10)])

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(raise_often)
        assert sorted(values) == list(range(1, 41))
