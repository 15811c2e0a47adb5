"""What a container's log knows of its chain in long-term storage: the newest element that exists, and the one
that is about to be created (rules J3, J5). Part of the state: changed by operations only."""

from __future__ import annotations

import attrs

from ...journal.manifest.element import NOTHING, Element
from ...journal.manifest.rules import Known
from ...journal.operations.log_element import ElementCreated, LogElement


@attrs.frozen
class ManifestState:
    head: LogElement | None = None
    """The newest element that exists; None if there was none yet."""
    intent: LogElement | None = None
    """The element that is recorded and not known to exist."""

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
    def size(self) -> int:
        """Of both, in bytes."""
        return sum(len(op.content) for op in (self.head, self.intent) if op is not None)

    def recorded(self, op: LogElement) -> ManifestState:
        op.element  # noqa: B018 - raises DecodeError unless it is one
        return ManifestState(self.head, op)

    def created(self, op: ElementCreated) -> ManifestState:
        """Raises ``ValueError`` if another element was recorded."""
        if self.intent is None or self.intent.position != op.position:
            raise ValueError(f"element {op.position.n} was created and not recorded before (rule J3)")

        return ManifestState(self.intent)
