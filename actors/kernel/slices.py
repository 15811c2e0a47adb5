"""Work on many items in slices, between which the event loop runs others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import anyio.lowlevel

T = TypeVar("T")
SLICE = 512
"""Items of about a microsecond each that one step of the event loop works on."""


def in_slices(items: Iterable[T], size: int = SLICE) -> Iterator[list[T]]:
    """The items, in lists of at most ``size``."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


async def list_in_slices(items: Iterable[T]) -> list[T]:
    """The items, which must not depend on what others do meanwhile."""
    found: list[T] = []
    for part in in_slices(items):
        found += part
        await anyio.lowlevel.checkpoint()
    return found


async def clear_in_slices(items: list[T]) -> None:
    """Remove all items: to free many objects takes as long as other work on them."""
    while items:
        del items[-SLICE:]
        await anyio.lowlevel.checkpoint()
