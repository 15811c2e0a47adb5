"""Bugs in the import of the legacy layout's segments, and in what becomes of their files.

Left out on purpose: the marks of who has a file (``file_marks.py``), because no two segments of a simulation
name the same file; and the check that a file is not released, because a name is imported once.
"""

from __future__ import annotations

from .mutant import Mutant, mutant

_LEGACY = "actors/legacy_rolling/legacy_segments.py"

OLDER: tuple[Mutant, ...] = (
    mutant(
        "a-name-is-imported-twice",
        "an imported segment that was deleted comes back at the next access, as long as its files are there",
        "S14",
        _LEGACY,
        "        records.append((imported_key(name), ImportedRecord(sid).encode()))\n",
        "        pass\n",
    ),
    mutant(
        "released-imported-files-are-never-collected",
        "an imported file that no segment needs any more stays in long-term storage for ever",
        "S19, G3",
        "storage_backends/segments/segment_transaction.py",
        "            self.metadata.put(ReleasedRecord(record.name, record.length))\n",
        "            pass\n",
    ),
    mutant(
        "released-files-are-not-looked-for",
        "an imported file that a dead owner released and did not delete stays for ever",
        "G3",
        "actors/gc/collector.py",
        "        self._take_over(self._released.names())\n",
        "",
    ),
    mutant(
        "an-import-under-way-is-no-segment",
        "a call that was refused just before somebody else's import came is told that there is no segment",
        "S14",
        _LEGACY,
        "        if not self.looks or is_staged(name):\n",
        "        if not self.may_know(name):\n",
    ),
    mutant(
        "an-import-does-not-look-who-came-before",
        "the second of two imports of one name at once is told that its files belong to another segment",
        "S14",
        _LEGACY,
        "        _check_free(self._state, name)  # who had the turn before may have imported it\n",
        "",
    ),
    mutant(
        "own-headers-are-imported",
        "a deleted segment comes back empty, because the header that was written for older readers is "
        "looked up",
        "S14",
        "actors/legacy_rolling/header_updates.py",
        "        await self._older.disown(name, record.segment)\n",
        "",
    ),
    mutant(
        "an-import-is-refused-by-who-was-succeeded",
        "an owner that was succeeded refuses an import by what it knew, though its successor has deleted "
        "the segment since",
        "C1",
        _LEGACY,
        "        except (SegmentExists, SegmentNotFound, InvalidArgument, DataCorruption):\n            "
        "await self._settle()\n",
        "        except (SegmentExists, SegmentNotFound, InvalidArgument, DataCorruption):\n",
    ),
    mutant(
        "a-chunk-is-gone-before-that-is-durable",
        "a file of the legacy layout comes back in a power loss after it was said to be gone: the delete "
        "that removed it lost its answer",
        "S19",
        "storage_backends/chunks/filesystem_programs.py",
        "        yield from _sync_what_is_left(dirname(path), folders.root)\n        raise\n",
        "        raise\n",
    ),
)
