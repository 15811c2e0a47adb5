"""Test tools for those who write a backend or embed a store. They need pytest; the library never imports this
package.

Conformance suites: inherit from one in a test class and provide what it asks for, then pytest runs every rule
of the contract against your implementation::

    from tierlog.testing import ChunkStorageConformance

    class TestMyStorage(ChunkStorageConformance):
        def make(self, folder):
            return MyChunkStorage(folder)

``ChunkStorageConformance``, ``CoordinationConformance``, ``DurableDataLogConformance`` and
``MetadataStoreConformance`` each say in their docstring what to provide. ``FaultyChunkStorage`` wraps a chunk
storage and fails on demand.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .chunk_conformance import ChunkStorageConformance
    from .coordination_conformance import CoordinationConformance
    from .faulty_chunk_storage import FaultyChunkStorage
    from .log_conformance import DurableDataLogConformance
    from .metadata_store_conformance import MetadataStoreConformance

_HOMES = {
    "ChunkStorageConformance": "chunk_conformance",
    "CoordinationConformance": "coordination_conformance",
    "DurableDataLogConformance": "log_conformance",
    "FaultyChunkStorage": "faulty_chunk_storage",
    "MetadataStoreConformance": "metadata_store_conformance",
}

__all__ = [
    "ChunkStorageConformance",
    "CoordinationConformance",
    "DurableDataLogConformance",
    "FaultyChunkStorage",
    "MetadataStoreConformance",
]


def __getattr__(name: str) -> object:
    """Modules are imported on first use: the suites import pytest, the wrapper does not."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
