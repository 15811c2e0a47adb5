"""Bugs in chunked segments, chunk storages and the actor before them: metadata and chunks tell different
stories.

Left out on purpose: a second attempt of a plain write (rule S3). Every chunk storage here takes a write only
at its chunk's exact end, so the repetition is refused and the segment goes on in a new chunk.
"""

from __future__ import annotations

from .mutant import Edit, Mutant, mutant

_TRANSACTION = "storage_backends/segments/segment_transaction.py"
_CONCAT = "storage_backends/segments/operations/concat.py"
_WRITE = "storage_backends/segments/operations/write.py"
_READ = "storage_backends/segments/operations/read.py"
_DEFERRED_WORK = "storage_backends/segments/operations/deferred_work.py"
_CORE = "storage_backends/segments/core.py"
_FILES = "storage_backends/chunks/filesystem.py"
_PROGRAMS = "storage_backends/chunks/filesystem_programs.py"
_ATTEMPTS = "actors/chunk_io/retries.py"
_ROOM = "if not self.core.chunks.capabilities.append or known != chunk.length:"

_JOIN_BY_COPY = """\
    if source.length and source.first_chunk == source.last_chunk:
        import attrs

        chunk = await txn.metadata.chunk(source.first_chunk)
        name = await txn.name_chunk(target.length)
        content = await txn.core.chunks.read(chunk.name, 0, chunk.length)
        await txn.core.chunks.create_with_content(name, [content])
        await txn.core.chunks.delete(chunk.name)
        txn.metadata.drop(chunk)
        txn.metadata.put(attrs.evolve(chunk, name=name))
        source = attrs.evolve(source, first_chunk=name, last_chunk=name)
    if source.length:
"""

CHUNKED: tuple[Mutant, ...] = (
    mutant(
        "concat-consumes-its-source",
        "a merge copies a source's chunk and deletes the original at once: a crash before the commit leaves "
        "metadata that points nowhere",
        "S4, hole 6",
        _CONCAT,
        "    if source.length:\n",
        _JOIN_BY_COPY,
    ),
    mutant(
        "spliced-last-chunk-starts-too-early",
        "after a merge of a source with several chunks, reads of the tail and further writes go to the "
        "wrong place",
        "S3",
        _CONCAT,
        "last_chunk_start=start + source.last_chunk_start,",
        "last_chunk_start=start,",
    ),
    mutant(
        "rolled-chunk-starts-too-early",
        "the start of a rolled chunk is that of the one before it",
        "S3",
        _WRITE,
        '"last_chunk_start": segment.length,',
        '"last_chunk_start": segment.last_chunk_start,',
    ),
    mutant(
        "chunk-names-are-used-again",
        "a new owner takes a chunk name that an older one may have used or may still write to",
        "S2",
        _CORE,
        "{self.epoch:016x}-{offset:016x}-{self.world.new_id()}",
        "{1:016x}-{offset:016x}",
    ),
    mutant(
        "chunk-of-another-owner-is-appended-to",
        "a new owner appends to a chunk that the owner before it may still write to",
        "S3",
        _TRANSACTION,
        _ROOM,
        "if not self.core.chunks.capabilities.append:",
    ),
    Mutant(
        "bytes-past-the-recorded-length-count",
        "what a failed write left behind in a chunk is taken for data of the segment",
        "S3",
        (
            Edit(_TRANSACTION, _ROOM, "if not self.core.chunks.capabilities.append:"),
            Edit(
                _WRITE,
                "await txn.core.chunks.write(chunk.name, chunk.length, data)",
                "await txn.core.chunks.write(chunk.name, (await txn.core.chunks.info(chunk.name)).length, "
                "data)",
            ),
            Edit(_WRITE, "if length != chunk.length + size:", "if length < chunk.length + size:"),
        ),
    ),
    mutant(
        "same-chunk-after-an-unknown-outcome",
        "after a write of unknown outcome the same chunk is written to again, is longer than recorded, and "
        "the segment is stuck",
        "S3",
        _TRANSACTION,
        "return self.core.appendable.pop(name, None)",
        "return self.core.appendable.get(name)",
    ),
    mutant(
        "checksums-are-not-verified",
        "damage in long-term storage is handed to readers as data",
        "S5, hole 32",
        _READ,
        "    _verify(request, data)\n",
        "",
    ),
    mutant(
        "truncated-to-empty-keeps-a-chunk",
        "a segment that is truncated at its end names a last chunk that is gone",
        "S6",
        _DEFERRED_WORK,
        "        if not name:\n",
        "        if name and not segment.chunk_count:\n",
    ),
    mutant(
        "truncate-deletes-before-its-commit",
        "a truncation deletes chunks first: a crash before the commit leaves a segment that can never be "
        "truncated again",
        "F2",
        _DEFERRED_WORK,
        "                await txn.drop_chunk(chunk)\n",
        "                await txn.drop_chunk(chunk)\n                await txn.core.chunks.delete(name)\n",
    ),
    mutant(
        "lost-creation-is-taken-for-done",
        "the creation of a chunk with an unknown outcome counts as done, and the log forgets the only copy",
        "S3",
        _ATTEMPTS,
        "Retry.CREATE: created}",
        "Retry.CREATE: Next.DONE}",
    ),
    mutant(
        "chunk-is-read-back-out-of-the-page-cache",
        "after a creation of unknown outcome the chunk is there to be read, but not on the disk, and a "
        "power loss takes it",
        "S3, hole 3",
        _ATTEMPTS,
        "Next.READ_BACK if reads_are_durable else Next.SURFACE",
        "Next.READ_BACK",
    ),
    mutant(
        "chunk-content-not-synced",
        "a chunk counts as stored, the log is truncated, and a power loss empties the chunk",
        "S2",
        _PROGRAMS,
        "        size = yield from fill(handle)\n        yield Sync(handle)\n",
        "        size = yield from fill(handle)\n",
    ),
    mutant(
        "chunk-append-not-synced",
        "an append to a chunk counts as stored, and a power loss takes it",
        "S3",
        _FILES,
        "                yield Write(handle, offset, data, bulk=True)\n                yield Sync(handle)\n",
        "                yield Write(handle, offset, data, bulk=True)\n",
    ),
    mutant(
        "chunk-name-not-synced",
        "a chunk's name is not durable, and a power loss takes the chunk",
        "S2",
        _PROGRAMS,
        "    yield from discard(temporary)\n    yield SyncFolder(dirname(path))\n",
        "    yield from discard(temporary)\n",
    ),
    Mutant(
        "mark-before-the-root-is-durable",
        "an opener that fails leaves a root whose name is not durable, nobody syncs it later, and a power "
        "loss takes all of it",
        "S2",
        (
            Edit(_FILES, "        yield from sync_ancestry(self._root)\n", ""),
            Edit(
                _FILES,
                "        yield Close(handle)\n        yield SyncFolder(self._root)\n",
                "        yield Close(handle)\n        yield from sync_ancestry(self._root)\n",
            ),
        ),
    ),
    mutant(
        "chunk-folder-not-synced",
        "the folder of a segment's chunks is not durable, and a power loss takes all of them",
        "S2",
        _PROGRAMS,
        "        yield SyncFolder(dirname(folder))\n        self._known.add(folder)\n",
        "        self._known.add(folder)\n",
    ),
)
