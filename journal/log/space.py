"""When a log has room for user appends, and when it allocates blocks ahead (rule W6). Pure.

Owns: the low-water decision with its hysteresis, and the size of the next allocation. Does not own: the calls
that find out.
"""

from __future__ import annotations

import attrs

from .local_layout import LocalLogOptions


def next_allocation(options: LocalLogOptions, allocated: int, end: int) -> int:
    """Up to which offset blocks must be allocated before a file is written up to ``end``; ``allocated``
    itself if they suffice.

    W6: ``reserve`` bytes stay allocated behind ``end``, so that later internal groups have blocks on a full
    disk.
    """
    if allocated >= end + options.reserve:
        return allocated
    return end + options.reserve + options.allocation_step


@attrs.define
class SpaceGauge:
    """What is known about room; ``observe`` feeds it, ``has_room`` asks it."""

    options: LocalLogOptions
    _open: bool = True
    _free: int = 0
    _spent: int = 0
    """Bytes appended since the last look at free space."""

    def observe(self, free: int, *, reserved: bool) -> None:
        """``free`` bytes are on the file system; ``reserved``: the blocks ahead and the reserve file are in
        place."""
        low = self.options.low_water
        self._open = reserved and free >= (low if self._open else 2 * low)
        self._free = free
        self._spent = 0

    def spend(self, size: int) -> None:
        self._spent += size

    @property
    def due(self) -> bool:
        """Whether the next append should look again: after every allocation step, and always while there is
        no room."""
        spent, options = self._spent, self.options
        return not self._open or spent >= options.allocation_step or self._free - spent < options.low_water

    def has_room(self, size: int) -> bool:
        return self._open and self._free - self._spent - size >= self.options.low_water
