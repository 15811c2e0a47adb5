"""Tables: updates of many rows, atomic and conditional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ....journal.operations.segment_image import WriterState
from ....journal.operations.update_table import UpdateTable
from ....storage_backends.base.errors import SegmentSealed, TableConflict
from ....storage_backends.sorted_runs.memtable import version_of
from ....storage_backends.sorted_runs.rows import Row
from ..requests import Request
from ..segments import SegmentState
from ..table_rows import row_prefix
from .append import find_repeat, first_answer
from .handlers import Decision, OperationHandler, RequestHandler
from .writers import and_spill

if TYPE_CHECKING:
    from ..state import ContainerState

LOOK_UP = object()
"""The answer of an update whose conditions must be looked up again (rule M9)."""


class UpdateTableRequest(Request):
    """Answered with the version of the rows, None if there are none, or ``LOOK_UP``. A repeat is answered
    with its first version, or with None if it is not the writer's latest update."""

    __slots__ = (
        "event_count",
        "expected",
        "first_event",
        "found",
        "history",
        "name",
        "previous_event",
        "rows",
        "seen",
        "sid",
        "size",
        "work",
        "writer",
    )

    def __init__(
        self,
        name: str,
        rows: Sequence[tuple[bytes, bytes | None]],
        expected: Mapping[bytes, int],
        writer: bytes = b"",
        first_event: int = 0,
        previous_event: int | None = None,
        history: int | None = None,
    ) -> None:
        """``expected``: by key, the version that it must have, ``ABSENT`` for no row."""
        self.name = name
        self.rows = rows
        self.size = sum(len(key) + len(value or b"") for key, value in rows) + sum(map(len, expected))
        self.work = 1 + len(rows) + len(expected)
        self.expected = expected
        self.writer = writer
        self.first_event = first_event
        self.event_count = 1 if writer else 0
        self.previous_event = previous_event
        self.history = history
        """That of the event. Versions say themselves which history they are of."""
        self.sid = 0
        """The table in which the conditions were looked up."""
        self.seen = 0
        """The version of the view in which they were looked up."""
        self.found: Mapping[bytes, int] = {}
        """By key: the versions in that view."""

    def named(self) -> Sequence[str]:
        return (self.name,)


def _decide(state: ContainerState, request: UpdateTableRequest) -> Decision:
    segment = state.segments.require(request.name).of_kind(is_table=True)
    # C3: repeats come first. A lost answer must not turn into ``TableConflict``.
    if request.writer and (known := find_repeat(state, segment, request)) is not None:
        return None, first_answer(request, known)

    if segment.sealed and request.rows:
        raise SegmentSealed(
            f"table {segment.name!r} is sealed: it can be read and deleted", segment=segment.name
        )

    if request.expected and not _is_as_expected(state, segment, request):
        return None, LOOK_UP
    if not request.rows:
        return None, None

    op = UpdateTable(
        segment.sid, request.writer, request.first_event, request.event_count, tuple(request.rows)
    )
    # The version is the sequence that the operation gets when it is applied next.
    return and_spill(state, segment, op.writer, op) if op.writer else op, state.sequence + 1


def _is_as_expected(state: ContainerState, segment: SegmentState, request: UpdateTableRequest) -> bool:
    """Whether all keys have the expected versions; False if that must be looked up again. Raises
    ``TableConflict`` (rules M9, M15)."""
    if request.sid != segment.sid:
        return False  # the table was created since

    find, prefix = state.table.find_in_memory, row_prefix(segment.sid)
    # M9: what is not in memory is as it was looked up, unless newer rows left memory since.
    is_known = state.table.runs.records_to <= request.seen
    for key, expected in request.expected.items():
        row = find(prefix + key)
        if row is None and not is_known:
            return False
        present = request.found[key] if row is None else version_of(row)
        if present != expected:
            raise _conflict(segment.name, key, expected, present)
    return True


def _shown_key(key: bytes) -> str:
    """As text, or in hex if it is none."""
    try:
        return repr(key.decode()[:100])
    except UnicodeDecodeError:
        return f"{key[:100].hex()} (hex)"


def _conflict(table: str, key: bytes, expected: int, present: int) -> TableConflict:
    def shown(version: int) -> str:
        return f"version {version}" if version else "no row"

    return TableConflict(
        f"key {_shown_key(key)} of table {table!r} has {shown(present)}, and the update expects "
        f"{shown(expected)}: read it and decide again",
        segment=table,
        key_hex=key.hex(),
        expected=expected,
        present=present,
    )


def _apply(state: ContainerState, op: UpdateTable) -> None:
    segment, version, prefix = state.change(op.sid), state.sequence, row_prefix(op.sid)
    state.table.put([Row(prefix + key, version, value) for key, value in op.rows])
    if op.writer:
        last = op.first_event + op.event_count - 1
        segment.writers[op.writer] = WriterState(op.first_event, last, version)


HANDLERS = (
    RequestHandler(UpdateTableRequest, _decide),
    OperationHandler(UpdateTable, _apply, from_client=True),
)
