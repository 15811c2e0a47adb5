"""Chunk storages: the contract of ``base/chunk_storage.py`` in memory and on a file system."""
