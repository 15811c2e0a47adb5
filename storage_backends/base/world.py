"""What a store takes from outside: the wall clock, randomness and ids.

Durations are measured with ``anyio.current_time`` inside one ownership (rule C8), so that a virtual clock
moves them and a jump of the wall clock does not.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NoReturn

from msgspec import Struct

from .errors import Unsupported

_TIME_MAX = (1 << 63) - 1


class World(Struct, frozen=True, eq=False):
    """The sources of everything that input does not determine. ``open_store`` makes one; a simulation passes
    its own."""

    wall_clock: Callable[[], float]
    """Seconds since 1970. For display, and to doubt a lease (rule D4): never for a decision that a jump could
    make wrong."""
    random: Random
    new_id: Callable[[], str]
    """Returns a new, globally unique id of 32 hexadecimal digits."""

    def id_bytes(self) -> bytes:
        """A new id as its 16 bytes."""
        return bytes.fromhex(self.new_id())

    def time_ms(self) -> int:
        """The wall clock in milliseconds since 1970, as records have it: a clock before 1970 or of more than
        63 bits counts as the first or last time that they can have."""
        return max(0, min(int(self.wall_clock() * 1000), _TIME_MAX))


def _refuse() -> NoReturn:
    raise Unsupported("a reader changes nothing, so it has no clock and draws no ids")


NO_WORLD = World(_refuse, Random(0), _refuse)
"""For readers."""
