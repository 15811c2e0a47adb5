"""Test tools for those who write a backend or embed a store.

Conformance suites: subclass ``DurableDataLogConformance``, ``RegisterConformance``,
``ChunkStorageConformance`` or ``MetadataStoreConformance`` and say how one is made; they need pytest. Fault
wrappers, simulations and a server: ``FaultyChunkStorage``, ``SimulatedDisk``, ``SimulatedFiles``,
``LocalS3Server``. The library itself never imports this package. Names are loaded at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.disk import SimulatedDisk
    from simulation.file_layer import SimulatedFiles

    from .chunk_conformance import ChunkStorageConformance
    from .faulty_chunk_storage import FaultyChunkStorage
    from .log_conformance import DurableDataLogConformance
    from .metadata_store_conformance import MetadataStoreConformance
    from .register_conformance import RegisterConformance
    from .s3_server import LocalS3Server

_HOMES = {
    "ChunkStorageConformance": "chunk_conformance",
    "DurableDataLogConformance": "log_conformance",
    "FaultyChunkStorage": "faulty_chunk_storage",
    "LocalS3Server": "s3_server",
    "MetadataStoreConformance": "metadata_store_conformance",
    "RegisterConformance": "register_conformance",
    "SimulatedDisk": "simulated_disk",
    "SimulatedFiles": "simulated_files",
}

__all__ = [
    "ChunkStorageConformance",
    "DurableDataLogConformance",
    "FaultyChunkStorage",
    "LocalS3Server",
    "MetadataStoreConformance",
    "RegisterConformance",
    "SimulatedDisk",
    "SimulatedFiles",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
