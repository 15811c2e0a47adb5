"""Where the containers are, as far as a client knows.

Owns: the newest place of each container, the merge of maps from several servers, who can be asked for a newer
one, and the placement of names. Does not own: asking (``attempts.py``), nor what is done with calls that
are under way.

The map of the URL that the client was given (the supervisor's, or a single host's) is taken as it is, unless
it knows an older epoch of a container. Of another host's map only what it serves itself counts, and places
that nobody told. A place without a URL is reached through the given one. Plain code without I/O; the sync
client calls it from many threads, so each change is one assignment of a new, frozen map.
"""

from __future__ import annotations

from ....storage_backends.base.errors import TierlogError
from ....storage_backends.base.names import container_of
from ..wire.bodies import ContainerAssignment, ContainerMap


class ContainerMapCache:
    def __init__(self, base: str) -> None:
        self.base = base
        self.places: tuple[ContainerAssignment, ...] = ()
        """Empty until a first map came."""
        self.generation = 0
        """Grows with each attempt to get a newer map, so that of many who want one only one asks."""
        self.failure: TierlogError | None = None
        """Why the last attempt failed."""

    def __repr__(self) -> str:
        return f"<ContainerMapCache of {self.base}, {len(self.places)} containers>"

    def learn(self, found: ContainerMap, source: str) -> None:
        """Take what is newer. A map of another number of containers is another store's: it is passed over."""
        if self.places and len(found.containers) != len(self.places):
            return

        old = self.places or found.containers
        newer = _is_newer if source == self.base else _fills_in
        self.places = tuple(
            new if newer(new, known) else known for new, known in zip(found.containers, old, strict=True)
        )

    def hint(self, container: int, url: str) -> bool:
        """Somebody who does not serve it says who does; returns whether that is news."""
        known = self.places[container]
        if known.url == url:
            return False

        moved = ContainerAssignment(container, url.rstrip("/"), known.epoch)
        self.places = (*self.places[:container], moved, *self.places[container + 1 :])
        return True

    def container_of(self, name: str) -> int:
        return container_of(name, len(self.places))

    def url_of(self, container: int) -> str:
        return self.places[container].url or self.base

    def has_moved(self, containers: tuple[int, ...], url: str) -> bool:
        """Whether all of these are known to be somewhere else than at ``url``."""
        return all(
            (found := self.places[container].url) is not None and found != url for container in containers
        )

    def by_url(self) -> dict[str, set[int]]:
        """The containers of each server."""
        found: dict[str, set[int]] = {}
        for place in self.places:
            found.setdefault(place.url or self.base, set()).add(place.container)

        return found

    @property
    def is_single(self) -> bool:
        """All containers are reached through the given URL."""
        return all(place.url is None for place in self.places)

    @property
    def sources(self) -> list[str]:
        """Whom to ask for a newer map, in order."""
        return list(
            dict.fromkeys([self.base, *(place.url for place in self.places if place.url is not None)])
        )


def _is_newer(new: ContainerAssignment, known: ContainerAssignment) -> bool:
    return new.epoch is None or known.epoch is None or new.epoch >= known.epoch


def _fills_in(new: ContainerAssignment, known: ContainerAssignment) -> bool:
    """From a host that has the container itself, or where nothing is known: the rest of its map may be older
    than ours."""
    return new.url is not None and (known.url is None or (new.epoch is not None and _is_newer(new, known)))
