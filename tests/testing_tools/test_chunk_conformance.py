"""The conformance suite can fail: each wrong storage breaks one promise of the contract, and at least one
case catches it.

The suite is run here without pytest, case by case on the loop of the test, so that one process suites them
all.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.faulty_chunks import Right, wrong_storages
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkState
from tierlog.testing.chunk_conformance import ChunkStorageConformance

SLOW = ("large", "any_size", "boundary", "cancelled", "many")
"""Words in the names of cases that move much data: they are asked last."""


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each case's method and the arguments that its marks give it."""
    methods = [
        pair
        for pair in inspect.getmembers(ChunkStorageConformance, inspect.isfunction)
        if pair[0].startswith("test_")
    ]
    for name, method in sorted(methods, key=lambda pair: any(word in pair[0] for word in SLOW)):
        marks = [mark for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
        for combination in itertools.product(*(mark.args[1] for mark in marks)):
            arguments: dict[str, Any] = {}
            for mark, value in zip(marks, combination, strict=True):
                names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
                values = (
                    value.values
                    if hasattr(value, "values") and hasattr(value, "id")
                    else (value,)
                    if len(names) == 1
                    else value
                )
                arguments.update(zip(names, values, strict=True))
            yield name, arguments


class ConformanceOfFaulty(ChunkStorageConformance):
    large = 3 << 20

    def __init__(self, kind: Callable[[MemoryChunkState], ChunkStorage]) -> None:
        self._kind = kind
        self._state = MemoryChunkState()

    def make(self, folder: Path) -> ChunkStorage:
        return self._kind(self._state)


async def run_case(kind: type[Right], name: str, arguments: dict[str, Any]) -> bool:
    """Whether the storage passes."""
    suite = ConformanceOfFaulty(kind)
    method = getattr(suite, name)
    wanted = inspect.signature(method).parameters
    storage, other = suite.make(Path()), suite.make(Path())
    fixtures = {"storage": storage, "other": other, "tmp_path": Path()}
    try:
        for each in (storage, other):
            if f"{(each is storage and 'storage') or 'other'}" in wanted:
                await each.open()
        await method(**{key: value for key, value in {**fixtures, **arguments}.items() if key in wanted})
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class())):
            raise
        return False
    return True


def test_the_suite_has_the_size_that_it_claims() -> None:
    assert len(list(cases())) >= 100


@pytest.mark.anyio
async def test_a_right_storage_passes_every_case() -> None:
    failed = [
        f"{name} {arguments}" for name, arguments in cases() if not await run_case(Right, name, arguments)
    ]

    assert failed == []


@pytest.mark.anyio
@pytest.mark.one_loop
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.__name__) for kind in wrong_storages()])
async def test_a_wrong_storage_is_caught(kind: type[Right]) -> None:
    for name, arguments in cases():
        if not await run_case(kind, name, arguments):
            return
    pytest.fail(f"no case catches {kind.__name__}")
