"""The contract of an object store with conditional puts: what a log in a bucket needs of it.

Every call may raise ``Unavailable``: it had no effect, and may be repeated. A put or a deletion may also
raise ``OutcomeUnknown``: it took effect, takes effect at any later time, or never does. A cancelled one too.
Once a put has answered, every later get and list shows it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from .checksum import Buffer


class StoredObject(NamedTuple):
    data: bytes
    """The object's first bytes, as many as were asked for."""
    length: int
    """Of the whole object, in bytes."""
    version: str
    """Another one after each put."""


class ListedKey(NamedTuple):
    key: str
    length: int


class ObjectStore(ABC):
    @abstractmethod
    async def open(self) -> None:
        """Connect. Raises ``ConfigError`` if the configuration must be corrected. Once per object."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def place(self, key: str) -> str:
        """Where that object is, for messages."""

    @abstractmethod
    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        """Create the object if there is none or, with ``version``, replace it if it has this one: wholly or
        not at all, and durably. Returns its new version, or None if the condition did not hold: then nothing
        changed, unless the request was sent twice on its way."""

    @abstractmethod
    async def get(self, key: str, size: int) -> StoredObject | None:
        """The object with its first ``size`` bytes, at least 1, or None if there is none. An empty object is
        one that was cut: no record and no log has such."""

    @abstractmethod
    def list(self, prefix: str) -> AsyncGenerator[ListedKey, None]:
        """The objects whose keys begin with ``prefix``, in any order. One that is created or deleted
        meanwhile may be missing or not."""

    @abstractmethod
    async def delete(self, key: str) -> None:
        """It is no error if there is none."""
