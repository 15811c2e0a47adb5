"""Where the containers are served, as far as a client knows. Plain code without I/O.

The map of the URL that the client was given (the supervisor's, or a single host's) is taken as it is, unless
the client knows a newer epoch of a container. Of another host's map only what it serves itself counts, and
containers without a known URL. A container without a URL is reached through the given one. Threads may share
a map: each change is one assignment of a new, frozen tuple."""

from __future__ import annotations

from collections.abc import Iterable

from ....storage_backends.base.arguments import APPEND_BYTES_MAX
from ....storage_backends.base.errors import Unavailable
from ....storage_backends.base.names import container_of
from ..wire.bodies import ContainerAssignment, ContainerMap
from .retries import Failure


class ContainerMapCache:
    def __init__(self, base: str) -> None:
        self.base = base
        self.assignments: tuple[ContainerAssignment, ...] = ()
        """Empty before the first map."""
        self.append_bytes_max = APPEND_BYTES_MAX
        """The largest append that the service takes."""
        self.generation = 0
        """Rises with each attempt to refresh the map, so that of many callers that want a newer one only one
        asks."""
        self.last_failure: Failure | None = None
        """Why the last attempt failed."""

    def __repr__(self) -> str:
        return f"<ContainerMapCache of {self.base}, {len(self.assignments)} containers>"

    def learn(self, found: ContainerMap, source: str) -> None:
        """Take what is newer. A map with another number of containers belongs to another store and is
        ignored."""
        if self.assignments and len(found.containers) != len(self.assignments):
            return

        self.append_bytes_max = found.append_bytes_max
        old = self.assignments or found.containers
        newer = _is_newer if source == self.base else _fills_in
        self.assignments = tuple(
            new if newer(new, known) else known for new, known in zip(found.containers, old, strict=True)
        )

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
        """Whether all of these are known to be served at another URL."""
        return all(
            (found := self.assignments[container].url) is not None and found != url
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
        """All containers are reached through the given URL."""
        return all(assignment.url is None for assignment in self.assignments)

    @property
    def sources(self) -> list[str]:
        """The URLs to ask for a newer map, in order."""
        return list(
            dict.fromkeys(
                [
                    self.base,
                    *(assignment.url for assignment in self.assignments if assignment.url is not None),
                ]
            )
        )


def _is_newer(new: ContainerAssignment, known: ContainerAssignment) -> bool:
    return new.epoch is None or known.epoch is None or new.epoch >= known.epoch


def _fills_in(new: ContainerAssignment, known: ContainerAssignment) -> bool:
    """Whether an entry of another host's map counts: the host serves the container itself, or no URL of it is
    known. The rest of its map may be older than ours."""
    return new.url is not None and (known.url is None or (new.epoch is not None and _is_newer(new, known)))
