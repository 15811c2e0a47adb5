"""Who owns a container: the store, its log, and one opening of it."""

from __future__ import annotations

from msgspec import Struct

from ...journal.manifest.element import Owner
from ..folder.fingerprint import Fingerprint


class Identity(Struct, frozen=True):
    """Identifies an owner: the store, its log, and this opening of it, 16 bytes each; and where it is."""

    store: bytes
    log: bytes
    owner: bytes
    folder: Fingerprint = Fingerprint()
    containers: int = 1
    """The number of containers of the store."""

    @property
    def signature(self) -> Owner:
        """The owner as elements record it."""
        return Owner(self.store, self.log, self.owner, self.folder.digest, self.folder.location)
