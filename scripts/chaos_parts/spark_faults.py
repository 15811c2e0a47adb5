"""The data source with trouble around it: tasks and commits that fail at a given point of a write.

Owns: wrappers around Spark's contract of a writer. The writers inside are the product's, and know nothing of
it. Does not own: what else happens at the point (``spark_trouble.py``, which hears through the gate of
everyone who reaches it), nor which point (``spark_draws.py``).

Wrappers are pickled to tasks, so executors must find this module. A task that strikes is one of the victim's
first attempts; the attempts after them only write. Points inside a task are told by the rows that the writer
has taken, which it stages before it takes more.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from chaos_parts.gate import Passer
from chaos_parts.service import command_of, stat_of
from chaos_parts.spark_draws import AT_THE_POINT, COPY_DONE, EXECUTOR, Draw, Point, Way
from tierlog.spark_bridge import TierlogDataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tierlog_chaos"
_GOES_ON = (Way.HOST_KILLED, Way.HOST_FROZEN, Way.SPECULATION)
"""Ways in which the task is not what fails."""


class OnPurposeError(Exception):
    """What a task or a commit fails with here."""


@attrs.frozen
class Fault:
    draw: Draw
    port: int
    """The gate's."""

    def tell(self, what: int) -> None:
        with Passer(self.port) as passer:
            passer.cross(self.draw.number, what)

    # --- tasks -----------------------------------------------------------------------------------

    def write(
        self, inner: Callable[[Iterator[Any]], WriterCommitMessage], rows: Iterator[Any]
    ) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        draw = self.draw
        if context.partitionId() != draw.victim or (draw.point.in_commit and not draw.holds_a_task):
            return inner(rows)

        if context.attemptNumber() >= draw.failing:
            message = inner(rows)
            if draw.holds_a_task:
                self.tell(COPY_DONE)
            return message

        return self._struck(inner, rows)

    def _struck(
        self, inner: Callable[[Iterator[Any]], WriterCommitMessage], rows: Iterator[Any]
    ) -> WriterCommitMessage:
        if self.draw.point is Point.BEFORE_APPENDS:
            self.strike()
        if self.draw.point is Point.MIDWAY or self.draw.point.in_commit:
            rows = self._interrupted(rows)
        message = inner(rows)
        if self.draw.point is Point.AFTER_APPENDS:
            self.strike()
        return message

    def _interrupted(self, rows: Iterator[Any]) -> Iterator[Any]:
        for number, row in enumerate(rows):
            if number == self.draw.batches:
                self.strike()
            yield row

    def strike(self) -> None:
        """In a task that has come to the point."""
        self.tell(AT_THE_POINT)
        if self.draw.way in _GOES_ON:
            return
        if self.draw.way is Way.EXECUTOR_KILLED:
            # This process goes on for a moment, as one does whose executor is lost.
            os.kill(executor_above(os.getpid()), signal.SIGKILL)
            return
        if self.draw.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OnPurposeError(f"round {self.draw.number}: {self.draw.point}")

    # --- the driver ------------------------------------------------------------------------------

    def commit(self, inner: Callable[[], None]) -> None:
        point, way = self.draw.point, self.draw.way
        if point is Point.COMMIT_UNSENT:
            self.tell(AT_THE_POINT)
            if way not in (Way.HOST_KILLED, Way.HOST_FROZEN):
                raise OnPurposeError("the commit was not sent")
        inner()
        if point is Point.COMMIT_DONE:
            self.tell(AT_THE_POINT)
            raise OnPurposeError("the commit's answer was lost")


def executor_above(pid: int) -> int:
    """The executor that a Python worker works for."""
    while EXECUTOR not in command_of(pid):
        pid = int(stat_of(pid)[1])
        if pid <= 1:
            raise OnPurposeError("this worker has no executor above it")
    return pid


# --- the contract, wrapped ----------------------------------------------------------------------


class _Wrapper:
    def __init__(self, inner: Any, fault: Fault) -> None:
        self.inner = inner
        self.fault = fault

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.fault.write(self.inner.write, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], *batch: int) -> None:
        self.fault.commit(partial(self.inner.commit, messages, *batch))

    def abort(self, messages: Sequence[WriterCommitMessage | None], *batch: int) -> None:
        self.inner.abort(messages, *batch)


class BatchArrow(_Wrapper, DataSourceArrowWriter):
    pass


class BatchRows(_Wrapper, DataSourceWriter):
    pass


class StreamArrow(_Wrapper, DataSourceStreamArrowWriter):
    pass


class StreamRows(_Wrapper, DataSourceStreamWriter):
    pass


def source_with(fault: Fault) -> type[TierlogDataSource]:
    """A data source ``tierlog_chaos``; one that is registered later takes the place of an earlier one."""

    class Source(TierlogDataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            inner = super().writer(schema, overwrite)
            return (BatchArrow if isinstance(inner, DataSourceArrowWriter) else BatchRows)(inner, fault)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark calls it so
            inner = super().streamWriter(schema, overwrite)
            return (StreamArrow if isinstance(inner, DataSourceStreamArrowWriter) else StreamRows)(
                inner, fault
            )

    return Source
