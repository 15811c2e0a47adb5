"""What an owner does about the chain in long-term storage: a pure decision from what its log knows and what
storage has (rules J3 to J6).

Creating element n + 1 is a compare-and-set on long-term storage. The log knows each element that this history
created: it is recorded before its creation and again when it exists. So the newest element in storage is the
one that the log ends with, or the one that was about to be created. Anything else is another history's, or
storage lost something."""

from __future__ import annotations

from enum import Enum

import attrs

from ...storage_backends.base.values import Value
from .element import Position


class Step(Enum):
    CREATE_NEXT = "record the next element, then create it"
    CREATE_AGAIN = "create the recorded element: with the same bytes, however often that was tried"
    CONFIRM = "the recorded element exists: record that"
    EMPTY = "storage has no element and should have some: it is not mounted, or it is lost"
    ROLLED_BACK = "storage has less than the log knows"
    FOREIGN = "another history went on from here"


@attrs.frozen(eq=False, repr=False)
class Known(Value):
    """What a log knows of its chain."""

    base: Position
    """The element that the next one follows: the newest that exists, or the predecessor of ``intent``."""
    intent: Position | None = None
    """An element that is recorded and not known to exist."""


def decide(known: Known, newest: Position) -> Step:
    """``newest`` is the element with the highest number in storage; ``NOTHING`` if there is none."""
    if newest == known.intent:
        return Step.CONFIRM

    # Number and CRC are compared. Two histories that part here create the same number with other bytes.
    if newest == known.base:
        return Step.CREATE_NEXT if known.intent is None else Step.CREATE_AGAIN

    # An empty listing is no rollback: a missing mount lists as empty, and must not end the ownership.
    if not newest.n:
        return Step.EMPTY

    return Step.ROLLED_BACK if newest.n < known.base.n else Step.FOREIGN


def next_predecessor(known: Known, newest: Position) -> Position:
    """What the next element follows when an operator has decided that this history lives (rule J6): its
    number exceeds all that either history used."""
    # The intent counts although it may not exist: a creation of it may still arrive, and a number is used
    # once (J1).
    last = known.intent or known.base
    return newest if newest.n >= last.n else last
