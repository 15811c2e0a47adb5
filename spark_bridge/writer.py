"""Spark's writers: the calls on the driver and in tasks, for batches and for streams.

Spark pickles a writer to every task and to ``commit`` and ``abort``, so it is plain data, and connections
come from ``connections.py``. Spark's protocol has two phases: tasks stage their rows and return a message,
and the driver commits the messages that count, in the order of partitions.

After a crash of the driver the staged data is dropped when the lease ends. Spark calls ``abort`` also after a
``commit`` that raised; the service keeps a committed transaction committed, so a commit whose answer was lost
stays whole."""

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

from ..storage_backends.base.errors import InvalidArgument, SegmentNotFound, TierlogError, TooLarge
from . import identity
from .connections import connections, new_id
from .events import Frames
from .identity import Identity
from .options import Delivery, Options
from .schema import arrow_frames, row_frames
from .staging import DirectAppender, TaskResult, append_directly, check_batches, stage
from .worker_heap import worker_heap

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import Row

    from ..actors.gateway.client.sync_client import SyncClient

_log = logging.getLogger(__name__)
_prepared: set[tuple[str, str]] = set()
"""Endpoints and targets that this process has prepared for micro-batches."""


@attrs.frozen
class Message(WriterCommitMessage):
    """What a task reports to the driver; ``result`` is None for a direct write, which needs no commit."""

    result: TaskResult | None


Messages: TypeAlias = "Sequence[WriterCommitMessage | None]"


@attrs.frozen
class Job:
    """A write, as all kinds of writers share it."""

    options: Options
    target: str
    column: int

    def prepare(self) -> None:
        """On the driver, before any task: check that the endpoint answers, and create the target if
        needed."""
        client = connections.client(self.options)
        try:
            client.segment_info(self.target)
        except SegmentNotFound:
            if not self.options.create_segment:
                raise
            client.create_segment(self.target, exist_ok=True)  # another writer may create it meanwhile

    def prepare_batch(self) -> None:
        """The same before each micro-batch of a stream, for which Spark asks twice. Once in a process is
        enough: a target that is deleted later is missed by the tasks, which create it again."""
        key = (self.options.endpoint, self.target)
        # At least once, tasks append without a begin, and cannot create what they miss.
        if self.options.delivery is Delivery.AT_LEAST_ONCE or key not in _prepared:
            self.prepare()
            _prepared.add(key)

    def write(
        self, frames: Iterator[Frames], name: Callable[[], Identity], *, is_stream: bool = False
    ) -> Message:
        """In a task. ``name`` returns the identity of the write."""
        worker_heap.begin()
        # A batch had its target before its tasks: if one misses that, its user has deleted it.
        create = is_stream and self.options.create_segment
        try:
            return self._write(connections.client(self.options), frames, name, create=create)
        except TooLarge as error:
            raise InvalidArgument(
                f"appends of up to batchBytes, {self.options.batch_bytes}, are too large for the service: "
                f"lower that option (no event may be larger either), or raise the "
                f"service's append_bytes_max; {error}"
            ) from error

    def _write(
        self, client: SyncClient, frames: Iterator[Frames], name: Callable[[], Identity], *, create: bool
    ) -> Message:
        size = self.options.batch_bytes
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            append_directly(DirectAppender(client, self.target, new_id()), frames, size)
            return Message(None)

        part = f"p{task().partitionId():05d}-{new_id()}"
        return Message(stage(client, name(), part, frames, size, create=create))

    def commit(self, messages: Messages, *, is_stream: bool = False) -> None:
        """``is_stream``: the token's epoch is the number of a micro-batch, which follow each other."""
        if self.options.delivery is Delivery.AT_LEAST_ONCE:
            return

        results = _results(messages)
        write = identity.common_identity(each.identity for each in results)
        if is_stream:
            check_batches(connections.client(self.options), write)
        parts = [part for each in results for part in each.parts]
        result = connections.client(self.options).commit_transaction(
            write.target, write.transaction_id, parts, token=write.token
        )
        _log.info(
            "%s %s to %r: %d parts with %d bytes",
            "committed" if result.applied else "was committed before:",
            write.transaction_id,
            write.target,
            len(parts),
            sum(part.length for part in parts),
        )

    def abort(self, write: Identity) -> None:
        """A committed transaction stays committed (rule T6). If the abort fails the lease does it: Spark's
        own error is the one to show."""
        try:
            connections.client(self.options).abort_transaction(
                write.target, write.transaction_id, reason="Spark aborted the write"
            )
        except TierlogError as error:
            _log.warning(
                "could not abort %s of %r, its lease will: %s", write.transaction_id, write.target, error
            )


def task() -> TaskContext:
    found = TaskContext.get()
    if found is None:
        raise RuntimeError("a writer's write() runs in a Spark task; there is none")

    return found


def _results(messages: Messages) -> list[TaskResult]:
    return [
        message.result for message in messages if isinstance(message, Message) and message.result is not None
    ]


# --- batches ------------------------------------------------------------------------------------


class _BatchCommits:
    """``commit`` and ``abort`` of a batch, whose identity was fixed when the writer was created."""

    def __init__(self, job: Job, identity: Identity) -> None:
        self.job = job
        self.identity = identity

    def commit(self, messages: Messages) -> None:
        worker_heap.begin()
        self.job.commit(messages)

    def abort(self, messages: Messages) -> None:
        worker_heap.begin()
        # What was appended at least once stays: readers may have seen it.
        if self.job.options.delivery is Delivery.EXACTLY_ONCE:
            self.job.abort(self.identity)


class BatchArrowWriter(_BatchCommits, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return self.job.write(arrow_frames(iterator, self.job.column), lambda: self.identity)


class BatchRowWriter(_BatchCommits, DataSourceWriter):
    def write(self, iterator: Iterator[Row]) -> Message:
        return self.job.write(row_frames(iterator, self.job.column), lambda: self.identity)


def batch_identity(job: Job) -> Identity:
    """Chosen once, on the driver, for the whole job."""
    client = connections.client(job.options)
    return identity.batch_identity(
        job.options, job.target, new_id, lambda: client.list_transactions(job.target)
    )


# --- streams ------------------------------------------------------------------------------------


class _StreamCommits:
    """``commit`` and ``abort`` of a micro-batch, whose identity is in the messages of its tasks."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark passes it by this name
        self.job.commit(messages, is_stream=True)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """Without a message the identity is unknown, and the lease ends the transaction."""
        for write in {each.identity for each in _results(messages)}:
            self.job.abort(write)

    def identity(self) -> Identity:
        # In the task: on the driver Spark gives a writer no number of its micro-batch.
        return identity.stream_identity(self.job.options, self.job.target, task().getLocalProperty)


class StreamArrowWriter(_StreamCommits, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return self.job.write(arrow_frames(iterator, self.job.column), self.identity, is_stream=True)


class StreamRowWriter(_StreamCommits, DataSourceStreamWriter):
    def write(self, iterator: Iterator[Row]) -> Message:
        return self.job.write(row_frames(iterator, self.job.column), self.identity, is_stream=True)
