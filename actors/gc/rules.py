"""What is garbage, and when it may go (PDP-53, rules G1, G2 and F2). Pure.

Owns: the two decisions. Does not own: time, storage, the queue.

A chunk is garbage if durable metadata has no record of it and the transaction that could add one is over.
Garbage is monotone: names are never used twice and no owner adds another's chunk, so what is garbage once
stays garbage, and a delete that is delayed does no harm.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import attrs


@attrs.frozen
class Garbage:
    """A name that nothing refers to, and what must be over before it goes."""

    name: str
    due: float
    """Monotonic seconds of this ownership: the delay protects readers that still hold the name."""
    after_cycle: int
    """The flush cycle of this owner that made it garbage."""


def is_ready(
    garbage: Garbage,
    *,
    now: float,
    completed_cycle: int,
    referenced: Container[str],
    in_transaction: Container[str],
) -> bool:
    """Whether it may be deleted, once a barrier proves the ownership (rule G1)."""
    return (
        now >= garbage.due
        and completed_cycle >= garbage.after_cycle
        and garbage.name not in referenced
        and garbage.name not in in_transaction
    )


def orphans(listed: Iterable[tuple[str, int]], *, epoch: int, referenced: Container[str]) -> list[str]:
    """Of (chunk name, creating epoch): what dead owners left behind. Their transactions are over, because the
    log fenced them."""
    return [name for name, created in listed if created < epoch and name not in referenced]
