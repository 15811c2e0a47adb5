"""The balance of containers over hosts: a pure function.

Every host gets the same number of containers, give or take one. A container stays where it is served unless
its host has more than its share: a move interrupts callers for a moment. The result does not depend on the
order of the input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def balance(
    containers: Collection[int], hosts: Collection[str], current: Mapping[int, str]
) -> dict[int, str]:
    """The host of each of ``containers``; empty without hosts. ``current``: their present hosts, lost ones
    included."""
    if not hosts:
        return {}

    held: dict[str, list[int]] = {host: [] for host in sorted(hosts)}
    unassigned: list[int] = []
    for index in sorted(containers):
        present = held.get(current.get(index, ""))
        (unassigned if present is None else present).append(index)

    shares = _shares(len(containers), held)
    for host, indexes in held.items():
        while len(indexes) > shares[host]:
            unassigned.append(indexes.pop())

    for index in sorted(unassigned):
        # The host with the fewest first, so that a lost host's containers spread over all others.
        target = min(
            (host for host in held if len(held[host]) < shares[host]),
            key=lambda host: (len(held[host]), host),
        )
        held[target].append(index)
    return {index: host for host, indexes in held.items() for index in indexes}


def _shares(count: int, held: Mapping[str, list[int]]) -> dict[str, int]:
    """How many containers each host should have. Hosts that have more get the odd ones, so that fewer
    move."""
    least, odd = divmod(count, len(held))
    fullest = sorted(held, key=lambda host: (-len(held[host]), host))
    return {host: least + (rank < odd) for rank, host in enumerate(fullest)}
