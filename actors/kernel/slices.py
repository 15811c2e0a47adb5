"""Work on many items in slices, between which the event loop runs others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

import anyio.lowlevel

T = TypeVar("T")
SLICE = 512
"""Items of about a microsecond each that one step of the event loop works on."""


async def list_in_slices(items: Iterable[T]) -> list[T]:
    """The items, which must not depend on what others do meanwhile."""
    found: list[T] = []
    iterator = iter(items)
    while part := list(islice(iterator, SLICE)):
        found += part
        await anyio.lowlevel.checkpoint()
    return found
