"""The balance of containers over hosts: pure, and in numbers of containers.

Every host gets the same number of containers, give or take one. A container stays where it is served unless
its host has more than its share: a move interrupts callers for a moment. The result does not depend on the
order of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush


def shares(total: int, loads: Mapping[str, int]) -> dict[str, int]:
    """How many of ``total`` containers each host should have. ``loads``: how many each has. Hosts that have
    more get the odd ones, so that fewer move."""
    least, odd = divmod(total, len(loads))
    fullest = sorted(loads, key=lambda host: (-loads[host], host))
    return {host: least + (rank < odd) for rank, host in enumerate(fullest)}


class Room:
    """The hosts that have less than their share. The one with the fewest gets the next container, so that a
    lost host's spread over all others."""

    def __init__(self, loads: Mapping[str, int], shares: Mapping[str, int]) -> None:
        self._shares = shares
        # The name decides between equals, so that the same state always gives the same orders.
        self._hosts = [(load, host) for host, load in loads.items() if load < shares[host]]
        heapify(self._hosts)

    def take(self, fits: Callable[[str], bool]) -> str | None:
        """The host of one more container; None if none of them ``fits``."""
        passed, found = [], None
        while self._hosts and found is None:
            load, host = heappop(self._hosts)
            if fits(host):
                found = host
                if load + 1 < self._shares[host]:
                    passed.append((load + 1, host))
            else:
                passed.append((load, host))
        for each in passed:
            heappush(self._hosts, each)
        return found
