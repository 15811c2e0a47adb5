"""What a store takes from outside: the wall clock, randomness and ids.

Durations never come from here: they are measured with ``anyio.current_time`` inside one ownership (rule C8),
so that a virtual clock moves them and a jump of the wall clock does not.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs


@attrs.frozen
class World:
    """The sources of everything that is not decided by input: passed in once, from ``node.py`` or a
    simulation."""

    wall_clock: Callable[[], float]
    """Seconds since 1970; for display only, never for a decision."""
    random: Random
    new_id: Callable[[], str]
    """A fresh id of 32 hexadecimal digits, unique for ever."""
