"""Test tools for those who write a backend or embed a store.

Conformance suites: subclass ``DurableDataLogConformance``, ``RegisterConformance``, ``ChunkStorageConformance`` or ``MetadataStoreConformance`` and say
how one is made. Fault wrappers and simulations: ``FaultyChunkStorage``, ``SimulatedDisk``, ``SimulatedFiles``. They need pytest and anyio's plugin; the
library itself never imports this package.
"""

from .chunk_conformance import ChunkStorageConformance
from .faulty_chunk_storage import FaultyChunkStorage
from .log_conformance import DurableDataLogConformance
from .metadata_store_conformance import MetadataStoreConformance
from .register_conformance import RegisterConformance
from .simulated_disk import SimulatedDisk
from .simulated_files import SimulatedFiles

__all__ = [
    "ChunkStorageConformance",
    "DurableDataLogConformance",
    "FaultyChunkStorage",
    "MetadataStoreConformance",
    "RegisterConformance",
    "SimulatedDisk",
    "SimulatedFiles",
]
