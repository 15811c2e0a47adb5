"""Segments made of chunks: records, transactions, layout, one file per operation. The rules:
``docs/protocols/chunked-storage.md``."""
