"""Which host should serve which container: a pure function.

Owns: balance and the least number of moves. Does not own: when a move is made, or whether a host can be
trusted (``fleet.py``).

Every host gets the same number of containers, give or take one. What a live host serves stays there unless
the host has more than its share: a move costs the callers a moment, so nothing moves without need. The same
input gives the same output, whatever its order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def assign(containers: Collection[int], hosts: Collection[str], current: Mapping[int, str]) -> dict[int, str]:
    """The host of each of ``containers``; empty without hosts. ``current``: where they are, hosts that are
    gone included."""
    if not hosts:
        return {}

    held: dict[str, list[int]] = {host: [] for host in sorted(hosts)}
    homeless: list[int] = []
    for index in sorted(containers):
        home = held.get(current.get(index, ""))
        (homeless if home is None else home).append(index)

    shares = _shares(len(containers), held)
    for host, indexes in held.items():
        while len(indexes) > shares[host]:
            homeless.append(indexes.pop())

    for index in sorted(homeless):
        # The emptiest first, so that losses spread over all who are left.
        taker = min(
            (host for host in held if len(held[host]) < shares[host]),
            key=lambda host: (len(held[host]), host),
        )
        held[taker].append(index)
    return {index: host for host, indexes in held.items() for index in indexes}


def _shares(count: int, held: Mapping[str, list[int]]) -> dict[str, int]:
    """How many containers each host should have; those who have more already get the odd ones, so that fewer
    move."""
    least, odd = divmod(count, len(held))
    fullest = sorted(held, key=lambda host: (-len(held[host]), host))
    return {host: least + (place < odd) for place, host in enumerate(fullest)}
