"""The storage-backend actor, which holds a ``ChunkStorage``, and its client (docs/protocols/actors.md, A12 to
A16)."""
