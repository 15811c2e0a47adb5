"""Chunk storages: the contract of ``base/chunk_storage.py`` in memory, on a file system and in S3."""
