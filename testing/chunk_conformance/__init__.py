"""``ChunkStorageConformance``: the contract of ``ChunkStorage`` as tests.

Subclass it, give ``make``, and run pytest: each test gets a fresh place. Capabilities decide which behaviour
is asked for; where one is missing, its tests ask for the refusal instead::

    class TestMyStorage(ChunkStorageConformance):
        def make(self, folder: Path) -> ChunkStorage:
            return MyChunkStorage(str(folder))

``make`` is called again for the same folder to get a second owner of the same storage. ``large`` may be made
smaller for a slow backend. The tests need pytest and anyio's plugin for it, which comes with anyio.
"""

from .appending import AppendConformance
from .cancellation import CancellationConformance
from .capabilities import CapabilityConformance
from .concatenation import ConcatConformance
from .concurrency import ConcurrencyConformance
from .instances import InstanceConformance
from .listing import ListConformance
from .names import NameConformance
from .reading import ReadConformance
from .whole import WholeObjectConformance

__all__ = ["ChunkStorageConformance"]


class ChunkStorageConformance(
    WholeObjectConformance,
    AppendConformance,
    ReadConformance,
    ConcatConformance,
    NameConformance,
    ListConformance,
    ConcurrencyConformance,
    CancellationConformance,
    CapabilityConformance,
    InstanceConformance,
):
    """All of it. See the module's head."""
