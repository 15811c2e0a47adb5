"""Bugs in the write-ahead logs and the register: what is acked is not durable, or an owner that was fenced
does not notice.

Left out on purpose, because another rule covers for them so that no run can tell the difference: the raise of
the register without its own sync (nothing leaves the opener before the sync at the end of the opening, and
file names repeat the epoch), and truncation without the look at the register (its address was durable under
this owner's epoch, so the files were needless for everybody).
"""

from __future__ import annotations

from .mutant import Edit, Mutant, mutant

_LOCAL = "journal/log/local.py"
_HISTORY = "journal/log/local_history.py"
_OPEN = "journal/log/local_open.py"
_WRITER = "journal/log/local_writer.py"
_REGISTER = "journal/registers/local.py"
_MEMORY = "journal/log/memory.py"

_CHECK = "if (yield Read(register, 0, EPOCH_RECORD_BYTES)) != self._epoch_record:"
_WRITE = "yield Write(current.handle, current.position, frame)"
_NEW_FILE = "        yield Sync(handle)\n        yield SyncFolder(context.layout.folder)\n"

WAL: tuple[Mutant, ...] = (
    mutant(
        "ack-before-sync",
        "an append is acked while its bytes are in the page cache only, and a power loss takes them",
        "W1",
        _LOCAL,
        "        yield current.sync\n",
        "",
    ),
    mutant(
        "failed-sync-is-retried",
        "a sync that failed is tried again; the second one finds clean pages and succeeds, and what was "
        "acked never reached the disk",
        "W6, hole 3",
        _LOCAL,
        "        yield current.sync\n",
        "        try:\n            yield current.sync\n        except OSError:\n            yield "
        "current.sync\n",
    ),
    mutant(
        "no-register-check-before-ack",
        "a frozen owner wakes up and acks appends that the owner after it has never seen",
        "W1",
        _LOCAL,
        _CHECK,
        "if False:",
    ),
    Mutant(
        "register-checked-before-the-write",
        "an owner looks at the register, is frozen, is succeeded, and then writes and acks what its "
        "successor has not read",
        "W1, hole 16",
        (
            Edit(_LOCAL, _WRITE, f"seen = yield Read(register, 0, EPOCH_RECORD_BYTES)\n        {_WRITE}"),
            Edit(_LOCAL, _CHECK, "if seen != self._epoch_record:"),
        ),
    ),
    mutant(
        "newer-epoch-passes-the-check",
        "the register is compared with 'at least' and not with 'equal', so an owner that was fenced goes on "
        "acking",
        "W1",
        _REGISTER,
        "    if found != (epoch, owner):\n",
        "    if found[0] < epoch:\n",
    ),
    mutant(
        "epoch-is-known-by-its-number-alone",
        "an owner whose raise of the register failed takes the epoch of the one who came next for its own, "
        "and opens over it",
        "hole 26",
        _REGISTER,
        "(before not in expected or by != owner)",
        "before not in expected",
    ),
    mutant(
        "check-owner-passes-newer-epochs",
        "a fenced owner goes on answering reads and questions from its old state",
        "hole 16",
        _LOCAL,
        "        if record != self._epoch_record:\n",
        "        if record < self._epoch_record:\n",
    ),
    Mutant(
        "no-relog-of-the-last-group",
        "an opener trusts the last group in the page cache, seals it and answers from it; a power loss "
        "takes it away",
        "W4, hole 3",
        (
            Edit(_OPEN, "    last = history.last\n", "    last = None\n"),
            Edit(_HISTORY, "if self.last is None or frame.number < self.last.number]", "]"),
        ),
    ),
    mutant(
        "opening-not-synced",
        "an opener answers before its file with the seal and the last group is on the disk",
        "W4, hole 15",
        _WRITER,
        _NEW_FILE,
        "        yield SyncFolder(context.layout.folder)\n",
    ),
    mutant(
        "name-of-new-file-not-synced",
        "a new WAL file has no durable name: after a power loss the file and all that was acked in it are "
        "gone",
        "W4",
        _WRITER,
        _NEW_FILE,
        "        yield Sync(handle)\n",
    ),
    Mutant(
        "seals-are-not-obeyed",
        "readers go by what is in an older file and not by its seal, so what a zombie wrote after the "
        "take-over comes to life",
        "W4, hole 15",
        (
            Edit(
                _HISTORY,
                "self._scan(content, content.header, seal.end)",
                "self._scan(content, content.header, len(content.data))",
            ),
            Edit(_HISTORY, "if found.end != seal.end:", "if found.end < seal.end:"),
            Edit(
                _HISTORY,
                "if wal.next_number != successor.header.first_group:",
                "if wal.next_number < successor.header.first_group:",
            ),
        ),
    ),
    mutant(
        "roll-forgets-older-files",
        "a rolled file names only the one before it, and recovery does not find the groups in the files "
        "before that",
        "W4",
        _LOCAL,
        "parts = (*self._parts, Part(",
        "parts = (Part(",
    ),
    mutant(
        "one-file-too-many-unlinked",
        "truncation removes a file whose last group is still needed",
        "W5",
        _LOCAL,
        "sum(start <= self._truncate_before for start in starts)",
        "sum(start <= self._truncate_before + 1 for start in starts)",
    ),
    mutant(
        "truncation-address-too-high",
        "after a checkpoint the log forgets all groups before its end record, unflushed bytes with them",
        "W5",
        _LOCAL,
        "self._truncate_before = max(self._truncate_before, truncate_before)",
        "self._truncate_before = max(self._truncate_before, truncate_before and number + 1)",
    ),
    mutant(
        "log-service-does-not-fence",
        "a log service takes appends of an owner whose epoch is over",
        "W1",
        _MEMORY,
        "        await self._checkpoint()\n        self.check_owner()\n        info =",
        "        await self._checkpoint()\n        info =",
    ),
)
