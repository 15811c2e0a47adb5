"""A merge in a helper process, so that the event loop keeps its turns (rule M7, docs/decisions/0017).

The helper is a new interpreter that imports this module and nothing of the program that embeds tierlog: no
``__main__`` runs again, and no fork copies threads, locks or an event loop. It reads its order from standard
input and answers on standard output. When the input ends, because the merge was cancelled or its process has
died, it ends at once. It never acts on Ctrl-C, which is its parent's to handle.

Where no interpreter can be started (an application frozen into one file, or an embedded interpreter), the
merge runs in a thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial

import anyio
import attrs
import msgspec
from anyio.abc import ByteReceiveStream

from ..base.errors import DataCorruption, StorageFull, StoreMismatch, TierlogError, Unavailable
from ..base.files import FULL, Files
from ..base.parallel import in_parallel
from ..files.local import drive
from .merge import MergeOrder, merge_runs
from .run_entry import RunEntry

_NICENESS = 10
"""The helper yields the processor to whoever needs it sooner."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


@attrs.frozen
class _Answer:
    runs: list[RunEntry] = attrs.field(factory=list)
    error: str = ""
    """The code of an error; empty if the merge succeeded."""
    message: str = ""
    file: str = ""
    offset: int = 0


def has_interpreter() -> bool:
    """Whether ``sys.executable`` starts Python."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


async def merge(order: MergeOrder, files: Files) -> list[RunEntry]:
    """Carry out ``order`` and return the entries of the new runs, whose files are durable. Raises
    ``DataCorruption`` with the name of a run that is damaged, missing or unreadable, ``StoreMismatch`` for
    one of a newer format, ``StorageFull``, or ``Unavailable`` if the helper failed; then repeat it later.
    Cancellation ends the helper; what it wrote is removed by the next ``LocalCopies.open``, or by the same
    merge."""
    if not has_interpreter():
        try:
            return await files.run(merge_runs(order))
        except OSError as error:
            raise _raised(_answer_of(error)) from error

    output, status, complaint = await _run_helper(msgspec.msgpack.encode(order))
    if status != 0:
        raise Unavailable(f"the helper process of a merge ended with status {status}: {complaint[-200:]}")

    try:
        answer = msgspec.msgpack.decode(output, type=_Answer)
    except msgspec.MsgspecError as error:
        raise Unavailable(
            f"the helper process of a merge answered {output[:40]!r}; does a start file of Python print?"
        ) from error
    if answer.error:
        raise _raised(answer)
    return answer.runs


async def _run_helper(request: bytes) -> tuple[bytes, int, str]:
    """What a helper answered to ``request``, its exit status, and the end of its standard error."""
    program = _PROGRAM.format(path=sys.path, module=__name__)
    pipe = subprocess.PIPE
    try:
        process = await anyio.open_process(
            [sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except OSError as error:
        raise Unavailable(f"no helper process can be started for a merge: {error}") from error

    async with process:  # Left by an exception, it ends the helper.
        assert process.stdin
        assert process.stdout
        assert process.stderr
        with suppress(anyio.BrokenResourceError):  # It has ended already; its status and errors say more.
            await process.stdin.send(len(request).to_bytes(8, "big") + request)
        streams = (process.stdout, process.stderr)
        output, complaint = await in_parallel(2, [partial(_read_all, stream) for stream in streams])
        status = await process.wait()
    return output, status, complaint.decode(errors="replace").strip()


async def _read_all(stream: ByteReceiveStream) -> bytes:
    return b"".join([part async for part in stream])


def _raised(answer: _Answer) -> TierlogError:
    if answer.error == DataCorruption.code:
        return DataCorruption(answer.message, file=answer.file, offset=answer.offset)
    kinds = {kind.code: kind for kind in (StorageFull, StoreMismatch, Unavailable)}
    return kinds[answer.error](answer.message)


def _answer_of(error: DataCorruption | StoreMismatch | OSError) -> _Answer:
    if isinstance(error, DataCorruption):
        return _Answer(error=error.code, message=error.reason, file=error.file, offset=error.offset)
    if isinstance(error, StoreMismatch):
        return _Answer(error=error.code, message=str(error))
    kind = StorageFull if error.errno in FULL else Unavailable
    return _Answer(error=kind.code, message=f"a merge failed on the local disk: {error}")


def main() -> None:
    """The helper process."""
    os.nice(_NICENESS)
    request = sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), "big"))
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    order = msgspec.msgpack.decode(request, type=MergeOrder)
    try:
        answer = _Answer(drive(merge_runs(order)))
    except (DataCorruption, StoreMismatch, OSError) as error:
        answer = _answer_of(error)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))
    sys.stdout.buffer.flush()
    os._exit(0)


def _end_with_the_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)
