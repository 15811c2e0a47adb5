"""Work on many items in slices, between which the event loop runs others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import TypeVar

import anyio.lowlevel

T = TypeVar("T")
SLICE = 512
"""Items of about a microsecond each that one step of the event loop works on."""


def in_slices(items: Iterable[T], size: int = SLICE) -> Iterable[list[T]]:
    """The items, in lists of at most ``size``."""
    # Most are few, and need no generator.
    if type(items) is list and len(items) < size:
        return (items.copy(),) if items else ()

    return _slices(iter(items), size)


def _slices(iterator: Iterator[T], size: int) -> Iterator[list[T]]:
    while part := list(islice(iterator, size)):
        yield part


async def turn_after(part: Sized) -> None:
    """Let the event loop run others after a full slice. A shorter one is the last of its loop and took no
    longer than what follows it: most flush cycles have one segment, and a turn takes as long as 20 items."""
    if len(part) >= SLICE:
        await anyio.lowlevel.checkpoint()


async def list_in_slices(items: Iterable[T]) -> list[T]:
    """The items, which must not depend on what others do meanwhile."""
    found: list[T] = []
    for part in in_slices(items):
        found += part
        await turn_after(part)
    return found


async def clear_in_slices(items: list[T]) -> None:
    """Remove all items: to free many objects takes as long as other work on them."""
    # From the end, where removing moves nothing.
    while len(items) > SLICE:
        del items[-SLICE:]
        await anyio.lowlevel.checkpoint()
    items.clear()
