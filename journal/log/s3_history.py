"""What the slots of a log in a bucket mean (rules L3 to L5): which groups count, and where the log ends. Pure
functions; ``s3_open`` acts."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .s3_slot import SlotHeader, SlotKind


@attrs.frozen
class Missing:
    """A slot that was settled is gone."""

    slot: int


@attrs.frozen
class Contradiction:
    """The object in the slot is none that an owner wrote after those before it."""

    slot: int
    why: str


@attrs.frozen(eq=False, repr=False)
class S3History:
    groups: list[SlotHeader]
    """Those that count, in order."""
    end: int
    """The free slot in which the log goes on."""
    next_group: int
    epoch: int
    """Of the newest owner that wrote anything that counts; 0 if none did."""
    void: list[int]
    """The slots of objects that do not count: a fenced owner wrote them."""


def read_history(low: int, slots: Mapping[int, SlotHeader]) -> S3History | Missing | Contradiction:
    """The history from slot ``low`` on, of the objects in ``slots`` from there on."""
    position, epoch, number = low, 0, 1
    groups: list[SlotHeader] = []
    counted = set[int]()
    while (header := slots.get(position)) is not None:
        why = _contradiction(header, low, epoch, number)
        if why:
            return Contradiction(position, why)
        counted.add(position)
        epoch, number = header.epoch, header.number
        if header.kind is SlotKind.GROUP:
            groups.append(header)
            number += 1
        position = header.next

    # L5: what stands behind the end was put beside the missing one, or after it was settled.
    if (low > 1 and not groups) or any(
        slot > position and header.settled > position for slot, header in slots.items()
    ):
        return Missing(position)
    void = [slot for slot in slots if slot >= low and slot not in counted]
    return S3History(groups, position, number, epoch, void)


def _contradiction(header: SlotHeader, low: int, epoch: int, number: int) -> str:
    """Why ``header`` cannot follow what an owner of ``epoch`` wrote, with ``number`` the next group's; empty
    if it can."""
    if header.slot == low and low > 1:
        # L7: truncation ends at a group, and nobody knows what was before.
        return "" if header.kind is SlotKind.GROUP else "the log begins with a fence"
    if header.number != number:
        return f"it has number {header.number}, not {number}"
    if header.kind is SlotKind.FENCE:
        return "" if header.epoch > epoch else f"its epoch {header.epoch} is not above {epoch}"
    # L3: an owner writes its fence first.
    return "" if header.epoch == epoch else f"its epoch {header.epoch} has no fence"
