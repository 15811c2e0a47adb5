"""A merge in a helper process, so that the event loop keeps its turns (rule M7, docs/decisions/0017).

The helper is a new interpreter that imports this module and nothing of the program that embeds tierlog: no
``__main__`` runs again, and no fork copies threads, locks or an event loop. It reads its order from standard
input and answers on standard output. When the input ends, because the merge was cancelled or its process has
died, it ends at once. It never acts on Ctrl-C, which is its parent's to handle.

Where no interpreter can be started (an application frozen into one file, an embedded interpreter, a Python
that was upgraded while this process runs, or no process at all), or what is started does not answer as a
helper (``sys.executable`` is another program, tierlog cannot be imported, a start file of Python prints), the
merge runs in a thread: the event loop gets fewer turns meanwhile, but without merges the table would refuse
rows in the end (rule M12). So does a small merge, which is done before a helper has started. A helper that a
signal ended, perhaps for its memory, is Unavailable.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import attrs
import msgspec
from anyio.lowlevel import checkpoint

from ..base.errors import DataCorruption, StorageFull, StoreMismatch, TierlogError, Unavailable
from ..base.files import FULL, Files
from ..files.local import drive
from .merge import MergeOrder, merge_runs
from .run_entry import RunEntry

_NICENESS = 10
"""The helper yields the processor to whoever needs it sooner."""
SMALL_BYTES = 128 << 10
"""A merge of so many bytes takes some milliseconds, a helper 0.2 seconds to start: owners that end before
that, such as short scripts, would never merge."""
_NOT_STARTED = 127
"""As shells have it."""
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
    size = sum(run.length for generation in order.generations for run in generation)
    return await (merge_here if size <= SMALL_BYTES else merge_in_helper)(order, files)


async def merge_in_helper(order: MergeOrder, files: Files) -> list[RunEntry]:
    """As ``merge``, however few the rows are."""
    answer: _Answer | None = None
    if has_interpreter():
        output, status, complaint = await _converse(msgspec.msgpack.encode(order))
        if status < 0:
            raise Unavailable(f"the helper process of a merge ended with status {status}: {complaint[-200:]}")
        if status == 0:
            with suppress(msgspec.MsgspecError):
                answer = msgspec.msgpack.decode(output, type=_Answer)
    if answer is None:
        return await merge_here(order, files)
    if answer.error:
        raise _raised(answer)
    return answer.runs


async def merge_here(order: MergeOrder, files: Files) -> list[RunEntry]:
    """As ``merge``, without a helper. Cancellation ends it within about a second: a thread cannot be killed,
    and the merge of a large table takes hours."""
    runs: list[RunEntry] = []
    failure: DataCorruption | StoreMismatch | OSError | None = None
    cancelled = threading.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_at_cancellation, cancelled.set)
        try:
            runs = await files.run(merge_runs(order, cancelled.is_set))
        except (DataCorruption, StoreMismatch, OSError) as error:
            failure = error
        tasks.cancel_scope.cancel()
    await checkpoint()  # cancelled rather than failed
    if failure is not None:
        raise _raised(_answer_of(failure)) from failure
    return runs


def _start_helper() -> subprocess.Popen[bytes]:
    # Imports ignore entries that are no strings. The helper may not begin in the folder of this process.
    places: Sequence[object] = sys.path
    entries = [entry for entry in places if isinstance(entry, str)]
    path = [os.path.abspath(entry) if os.path.exists(entry or ".") else entry for entry in entries]
    pipe = subprocess.PIPE
    return subprocess.Popen(  # noqa: S603 - this interpreter, with a program of our own
        [sys.executable, "-c", _PROGRAM.format(path=path, module=__name__)],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )


class _Helper:
    """A process that a thread starts, asks and waits for, and that another one may end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_given_up = False

    def end(self) -> None:
        self._is_given_up = True
        if self._process is not None:
            self._process.kill()  # does nothing if it has ended

    def ask(self, request: bytes) -> tuple[bytes, int, str]:
        """What it answers, its exit status, and its standard error, once it has ended."""
        try:
            self._process = process = _start_helper()
        except OSError as error:
            return b"", _NOT_STARTED, str(error)

        if self._is_given_up:  # before there was a process to kill
            process.kill()
        orders, process.stdin = process.stdin, None  # It stays open: its end would end the helper.
        assert orders
        try:
            with suppress(BrokenPipeError):  # It has ended; its status and errors have the reason.
                orders.write(len(request).to_bytes(8, "big") + request)
                orders.flush()
            output, complaint = process.communicate()
        finally:
            with suppress(BrokenPipeError):
                orders.close()
        return output, process.returncode, complaint.decode(errors="replace").strip()


async def _converse(request: bytes) -> tuple[bytes, int, str]:
    """``_Helper.ask`` of a helper that ends if this is cancelled."""
    helper = _Helper()
    # In a thread of its own. To start a process takes milliseconds. Two wait for a process of asyncio: a
    # watcher's thread, and each signal to it, which first asks whether the process runs. One that ends at
    # that moment is reported as unknown.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_at_cancellation, helper.end)
        with anyio.CancelScope(shield=True):
            limiter = anyio.CapacityLimiter(1)
            answer = await anyio.to_thread.run_sync(helper.ask, request, limiter=limiter)
        tasks.cancel_scope.cancel()
    await checkpoint()  # cancelled rather than failed
    return answer


async def _at_cancellation(end: Callable[[], None]) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        end()


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
    # A thread, because the merge itself never waits.
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
