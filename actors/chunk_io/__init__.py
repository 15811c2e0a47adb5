"""The storage-backend actor: the one holder of a ``ChunkStorage``, and the client through which everybody
else sees it.

Owns: retries, deadlines, limits, the quota and the breaker (rules A12 to A16, docs/protocols/actors.md). Does
not own: what chunks are for.
"""
