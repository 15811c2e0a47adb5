"""Where the containers are served, as far as a client knows. Plain code without I/O.

Of the addresses that the client was given, it uses one as its **base**, until that does not answer. What a
server says of itself has an epoch, and counts from every server unless a newer epoch is known; so does what
the supervisor says. What a host says of other hosts may be old: from the base it counts if it is news, or if
nothing better is known, and from any other server only if no URL is known. A container without a URL is
reached through the base. Threads may share a map: each change is one assignment of a new, frozen tuple."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from ....storage_backends.base.arguments import APPEND_BYTES_MAX
from ....storage_backends.base.errors import Unavailable
from ....storage_backends.base.names import container_of
from ..wire.bodies import ContainerAssignment, ContainerMap
from .addresses import listed
from .retries import Failure, Kind


class ContainerMapCache:
    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        """Those that the user gave."""
        self.base = addresses[0]
        self.assignments: tuple[ContainerAssignment, ...] = ()
        """Empty before the first map."""
        self.append_bytes_max = APPEND_BYTES_MAX
        """The largest append that the service takes."""
        self.generation = 0
        """Rises with each attempt to refresh the map, so that of many callers that want a newer one only one
        asks."""
        self.failures: Mapping[str, Failure] = {}
        """Why the given addresses that were asked last did not answer."""
        self.asks_all = False
        """A fresh map did not help: the next refresh asks every known server what it serves itself."""
        self._latest: tuple[ContainerAssignment, ...] = ()
        """The last map of the base."""
        self._named: tuple[str, ...] = ()
        """The URLs in the last map of a host, where new owners may be among them."""

    def __repr__(self) -> str:
        return f"<ContainerMapCache of {self.base}, {len(self.assignments)} containers>"

    def checked(self, found: ContainerMap) -> ContainerMap | Failure:
        """``found``, or why it is ignored: one with another number of containers belongs to another store."""
        count, known = len(found.containers), len(self.assignments)
        if not known or count == known:
            return found

        words = f"it serves another store, which has {count} containers and not {known}"
        return Failure(Kind.REFUSED, Unavailable(words))

    def learn(self, found: ContainerMap, source: str) -> None:
        """Take what is newer. ``found`` is checked."""
        self.append_bytes_max = found.append_bytes_max
        known = self.assignments or found.containers
        is_base = source == self.base
        latest = self._latest if is_base and self._latest else found.containers
        self.assignments = tuple(
            new if _counts(new, old, is_base=is_base, is_news=new.url != before.url) else old
            for new, old, before in zip(found.containers, known, latest, strict=True)
        )
        self._named = tuple(assignment.url for assignment in found.containers if assignment.url is not None)
        if is_base:
            self._latest = found.containers

    def use_base(self, url: str) -> None:
        """Send what has no other URL to this one of the given addresses."""
        if url != self.base:
            # The word of another one: what of it is news does not show yet.
            self.base, self._latest = url, ()

    @property
    def next_address(self) -> str:
        """That which follows the base, of the given ones."""
        return self.addresses[(self.addresses.index(self.base) + 1) % len(self.addresses)]

    def note_failures(self, failures: Mapping[str, Failure], *, has_base: bool) -> None:
        """Why these of the given addresses did not answer; ``has_base``: one did."""
        late = None if has_base else Failure(Kind.NOT_SENT, Unavailable("it was not asked in time"))
        # One that was not asked for lack of time has the reason from before.
        before = {} if has_base else self.failures
        found = ((url, failures.get(url, before.get(url, late))) for url in self.addresses)
        self.failures = {url: failure for url, failure in found if failure is not None}

    def explained(self, failure: Failure) -> Failure:
        """``failure``; if it is that of a server that does not answer, and none of several given addresses
        answered the last refresh either, with the reason of each."""
        is_silent = failure.kind in (Kind.NOT_SENT, Kind.UNKNOWN)
        if not is_silent or len(self.addresses) == 1 or len(self.failures) < len(self.addresses):
            return failure

        reasons = listed({url: str(each.error) for url, each in self.failures.items()})
        error = type(failure.error)(f"{failure.error}; none of the addresses answers: {reasons}")
        return attrs.evolve(failure, error=error)

    def hint(self, container: int, url: str) -> bool:
        """Note the owner that another host named. Returns whether it is new."""
        known = self.assignments[container]
        if known.url == url:
            return False

        moved = ContainerAssignment(container, url.rstrip("/"), known.epoch)
        self.assignments = (*self.assignments[:container], moved, *self.assignments[container + 1 :])
        return True

    def container_of(self, name: str) -> int:
        return container_of(name, len(self.assignments))

    def url_of(self, container: int) -> str:
        return self.assignments[container].url or self.base

    def withheld(self, containers: Iterable[int]) -> Unavailable | None:
        """Why one of these stays closed until an operator opens it. Only a fresh map knows that it still
        is."""
        for container in containers:
            found = self.assignments[container]
            if found.is_withheld:
                return Unavailable(found.absence)
        return None

    def has_moved(self, containers: tuple[int, ...], url: str) -> bool:
        """Whether all of these are known to be served at another URL, or reached through another address."""
        is_left = url in self.addresses and url != self.base
        return all(
            is_left if (found := self.assignments[container].url) is None else found != url
            for container in containers
        )

    def by_url(self) -> dict[str, set[int]]:
        """The containers of each server."""
        found: dict[str, set[int]] = {}
        for assignment in self.assignments:
            found.setdefault(assignment.url or self.base, set()).add(assignment.container)

        return found

    @property
    def is_single(self) -> bool:
        """All containers are reached through the base."""
        return all(assignment.url is None for assignment in self.assignments)

    @property
    def has_choice(self) -> bool:
        """There is another server that may answer if one does not."""
        return len(self.addresses) > 1 or not self.is_single

    def sources(self, first: str) -> list[str]:
        """The URLs to ask for a newer map, in order, from ``first`` on, which is one of the given ones."""
        owners = (assignment.url for assignment in self.assignments if assignment.url is not None)
        place = self.addresses.index(first)
        given = (*self.addresses[place:], *self.addresses[:place])
        return list(dict.fromkeys([*given, *owners, *self._named]))


def is_complete(found: ContainerMap) -> bool:
    """Whether it is of a server that knows all containers at first hand: the supervisor, or one that serves
    all of them."""
    return all(assignment.epoch is not None or bool(assignment.absence) for assignment in found.containers)


def _counts(new: ContainerAssignment, known: ContainerAssignment, *, is_base: bool, is_news: bool) -> bool:
    if new.epoch is not None and (is_base or new.url is not None):
        return known.epoch is None or new.epoch >= known.epoch

    if is_base:
        return known.epoch is None or is_news or bool(new.absence)

    return new.url is not None and known.url is None
