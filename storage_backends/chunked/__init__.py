"""Segments made of chunks: records, transactions, layout, and one file per operation. ``docs/protocols/chunked-storage.md`` holds the rules."""
