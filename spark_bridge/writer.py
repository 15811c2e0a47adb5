"""Spark's writers: what is called on the driver and in tasks, for batches and for streams.

Owns: the meeting of Spark's calls and the steps of ``staging.py``. Does not own: those steps, nor names
(``identity.py``).

Spark pickles a writer to every task and to ``commit`` and ``abort``: it is data, and connections come from
``connections.py``. Spark's part is two-phase: tasks prepare and return a message, the driver commits the
messages that count, in the order of partitions.

Crash: what a lost driver leaves is dropped when the lease ends. ``abort`` is called after a commit that
raised, too; the service keeps a committed transaction committed, so a commit whose answer was lost stays
whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from ..actors.gateway.client.sync_client import SyncClient
from ..actors.gateway.wire.errors import TooLarge
from ..storage_backends.base.errors import InvalidArgument, SegmentExists, SegmentNotFound, TierlogError
from . import identity
from .connections import connections, new_id
from .events import Frames
from .identity import Identity
from .options import Delivery, Options
from .rows import arrow_frames, row_frames
from .staging import DirectPlace, Staged, append_directly, stage
from .worker_heap import worker_heap

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import Row

_log = logging.getLogger(__name__)


@attrs.frozen
class Message(WriterCommitMessage):
    """What a task tells the driver; ``staged`` is None where there is nothing to commit."""

    staged: Staged | None


Messages: TypeAlias = "Sequence[WriterCommitMessage | None]"


@attrs.frozen
class Job:
    """What writers of all kinds have in common, and what they do with it."""

    options: Options
    target: str
    column: int

    def prepare(self) -> None:
        """On the driver, before any task: the endpoint answers and the target is there."""
        client = connections.client(self.options)
        try:
            client.segment_info(self.target)
        except SegmentNotFound:
            if not self.options.create_segment:
                raise
            make_segment(client, self.target)

    def write(self, frames: Iterator[Frames], name: Callable[[], Identity]) -> Message:
        """In a task."""
        worker_heap.begin()
        try:
            return self._write(connections.client(self.options), frames, name)
        except TooLarge as error:
            raise InvalidArgument(
                f"an append of up to batchBytes, {self.options.batch_bytes}, is more than the service "
                f"takes: set that option to less (no "
                f"event may be larger either), or raise the service's append_bytes_max; {error}"
            ) from error

    def _write(self, client: SyncClient, frames: Iterator[Frames], name: Callable[[], Identity]) -> Message:
        size = self.options.batch_bytes
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            append_directly(DirectPlace(client, self.target, new_id()), frames, size)
            return Message(None)

        part = f"p{task().partitionId():05d}-{new_id()}"
        return Message(stage(client, name(), part, frames, size))

    def commit(self, messages: Messages) -> None:
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            return

        staged = _staged(messages)
        who = identity.agreed(each.identity for each in staged)
        parts = [part for each in staged for part in each.parts]
        result = connections.client(self.options).commit_transaction(
            who.target, who.transaction_id, parts, token=who.token
        )
        _log.info(
            "%s %s to %r: %d parts with %d bytes, CRC32Cs %s",
            "committed" if result.applied else "had been committed before:",
            who.transaction_id,
            who.target,
            len(parts),
            sum(part.length for part in parts),
            " ".join(f"{each.crc:08x}" for each in staged if each.segment),
        )

    def abort(self, who: Identity) -> None:
        """Changes nothing about a committed one (rule T6). One that fails is left to the lease: Spark's own
        error is the one to show."""
        try:
            connections.client(self.options).abort_transaction(
                who.target, who.transaction_id, reason="Spark aborted the write"
            )
        except TierlogError as error:
            _log.warning(
                "could not abort %s of %r, its lease will: %s", who.transaction_id, who.target, error
            )


def make_segment(client: SyncClient, name: str) -> None:
    try:
        client.create_segment(name)
    except SegmentExists:
        _log.debug("%r was made by another writer meanwhile", name)


def task() -> TaskContext:
    found = TaskContext.get()
    if found is None:
        raise RuntimeError("a writer's write() runs in a Spark task; there is none")

    return found


def _staged(messages: Messages) -> list[Staged]:
    return [
        message.staged for message in messages if isinstance(message, Message) and message.staged is not None
    ]


# --- batches ------------------------------------------------------------------------------------


class _BatchCommits:
    """``commit`` and ``abort`` of a batch: its one name was given when the writer was made."""

    def __init__(self, job: Job, who: Identity) -> None:
        self.job = job
        self.identity = who

    def commit(self, messages: Messages) -> None:
        worker_heap.begin()
        self.job.commit(messages)

    def abort(self, messages: Messages) -> None:
        worker_heap.begin()
        if self.job.options.delivery is Delivery.EXACTLY_ONCE:
            self.job.abort(self.identity)


class BatchArrowWriter(_BatchCommits, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return self.job.write(arrow_frames(iterator, self.job.column), lambda: self.identity)


class BatchRowWriter(_BatchCommits, DataSourceWriter):
    def write(self, iterator: Iterator[Row]) -> Message:
        return self.job.write(row_frames(iterator, self.job.column), lambda: self.identity)


def batch_identity(job: Job) -> Identity:
    """Drawn once, on the driver: it names the whole job."""
    client = connections.client(job.options)
    return identity.batch_identity(
        job.options, job.target, new_id, lambda: client.list_transactions(job.target)
    )


# --- streams ------------------------------------------------------------------------------------


class _StreamCommits:
    """``commit`` and ``abort`` of a micro-batch: its name comes from the tasks, in their messages."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark passes it by this name
        self.job.commit(messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """Without a message there is nobody to ask for the name: then the lease ends it."""
        for who in {each.identity for each in _staged(messages)}:
            self.job.abort(who)

    def identity(self) -> Identity:
        return identity.stream_identity(self.job.options, self.job.target, task().getLocalProperty)


class StreamArrowWriter(_StreamCommits, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return self.job.write(arrow_frames(iterator, self.job.column), self.identity)


class StreamRowWriter(_StreamCommits, DataSourceStreamWriter):
    def write(self, iterator: Iterator[Row]) -> Message:
        return self.job.write(row_frames(iterator, self.job.column), self.identity)
