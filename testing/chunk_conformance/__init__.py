"""``ChunkStorageConformance``: the contract of ``ChunkStorage`` as tests.

Inherit from it, implement ``make``, and run pytest with anyio's plugin, which comes with anyio::

    class TestMyStorage(ChunkStorageConformance):
        def make(self, folder: Path) -> ChunkStorage:
            return MyChunkStorage(str(folder))

Each test gets a new folder. ``make`` is called again for the same folder to get a second owner of the same
storage. The tests follow ``capabilities``: without a capability they require that its verbs are refused. Set
``large`` (bytes) lower for a slow backend.
"""

from .appending import AppendConformance
from .cancellation import CancellationConformance
from .capabilities import CapabilityConformance
from .concatenation import ConcatConformance, ReplaceConformance
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
    ReplaceConformance,
    NameConformance,
    ListConformance,
    ConcurrencyConformance,
    CancellationConformance,
    CapabilityConformance,
    InstanceConformance,
):
    """All tests of the contract. Implement ``make(folder)``: a storage in that folder, not open yet."""
