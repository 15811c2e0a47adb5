"""What a container's log knows of its chain in long-term storage: the newest element that exists, and the one
that is about to be created (rules J3, J5). Part of the state: changed by operations only."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from ...journal.manifest.element import NOTHING, Element, Pin
from ...journal.manifest.rules import Known
from ...journal.operations.log_element import ElementCreated, LogElement
from ...storage_backends.sorted_runs.run_list import RunList


class ManifestState(Struct, frozen=True):
    head: LogElement | None = None
    """The newest element that exists; None if there was none yet."""
    intent: LogElement | None = None
    """The element that is recorded and not known to exist."""
    previous: LogElement | None = None
    """The element before ``head``; None if it is not known, because a checkpoint has ``head`` only."""

    @property
    def runs(self) -> RunList:
        """The runs that count."""
        return RunList() if self.head is None else self.head.element.runs

    @property
    def intended_runs(self) -> RunList:
        return RunList() if self.intent is None else self.intent.element.runs

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The pins of the elements that may be the newest one (rule P2)."""
        elements = (op.element for op in (self.head, self.intent) if op is not None)
        return tuple(dict.fromkeys(pin for element in elements for pin in element.pins))

    @property
    def highest_cycle(self) -> int:
        """The highest number of a cycle that an element has used, or is about to."""
        elements = (op.element for op in (self.head, self.intent) if op is not None)
        return max((element.progress.highest_cycle for element in elements), default=0)

    def runs_among(self, names: Collection[str]) -> Collection[str]:
        """Which of the runs ``names`` an element names that may exist: all of them while the element before
        ``head`` is not known (rule M11)."""
        if self.head is not None and self.previous is None and self.head.position.n > 1:
            return names

        elements = (op for op in (self.previous, self.head, self.intent) if op is not None)
        return {run.name for op in elements for run in op.element.runs}.intersection(names)

    @property
    def known(self) -> Known:
        if self.intent is not None:
            return Known(self.intent.element.predecessor, self.intent.position)

        return Known(NOTHING if self.head is None else self.head.position)

    @property
    def newest(self) -> Element | None:
        """The newest element that exists."""
        return None if self.head is None else self.head.element

    @property
    def recorded_last(self) -> Element | None:
        """The newest element that was recorded, whether it exists or not."""
        op = self.intent or self.head
        return None if op is None else op.element

    @property
    def size(self) -> int:
        """The size of both elements, in bytes."""
        return sum(len(op.content) for op in (self.head, self.intent) if op is not None)

    def recorded(self, op: LogElement) -> ManifestState:
        """Raises ``DecodeError`` unless this code can use the element."""
        _ = op.element  # decodes it
        return ManifestState(self.head, op, self.previous)

    def created(self, op: ElementCreated) -> ManifestState:
        """Raises ``ValueError`` if another element was recorded."""
        if self.intent is None or self.intent.position != op.position:
            raise ValueError(f"element {op.position.n} was created and not recorded before (rule J3)")

        return ManifestState(self.intent, previous=self.head)
