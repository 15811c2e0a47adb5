"""tierlog's data source, with tasks and commits that fail at a given point of a write.

The wrappers are Spark's writers; the product's writers inside know nothing of them. They are pickled to
tasks, so executors must find this module. The failing attempts are the first ones of the scenario's victim;
later attempts only write. Points inside a task are counted in rows that the writer has taken, because it
stages rows before it takes more."""

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

from chaos_parts.processes import command_of
from chaos_parts.spark_scenarios import COPY_DONE, EXECUTOR, POINT_REACHED, FaultKind, Point, Scenario
from chaos_parts.sync_point import SyncPoint
from tierlog.actors.kernel.process_status import status_fields
from tierlog.spark_bridge import TierlogDataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tierlog_chaos"
_TASK_GOES_ON = (FaultKind.HOST_KILLED, FaultKind.HOST_FROZEN, FaultKind.SPECULATION)
"""Faults of something else than the task."""


class OnPurposeError(Exception):
    """The injected failure of a task or a commit."""


@attrs.frozen
class Fault:
    scenario: Scenario
    port: int
    """The port of the sync point."""

    def report(self, what: int) -> None:
        with SyncPoint(self.port) as sync_point:
            sync_point.reach(self.scenario.number, what)

    # --- tasks -----------------------------------------------------------------------------------

    def write(
        self, inner: Callable[[Iterator[Any]], WriterCommitMessage], rows: Iterator[Any]
    ) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        scenario = self.scenario
        if context.partitionId() != scenario.victim or (
            scenario.point.in_commit and not scenario.holds_a_task
        ):
            return inner(rows)

        if context.attemptNumber() >= scenario.failing:
            message = inner(rows)
            if scenario.holds_a_task:
                self.report(COPY_DONE)
            return message

        if scenario.point is Point.BEFORE_APPENDS:
            self.inject()
        if scenario.point is Point.MIDWAY or scenario.point.in_commit:
            rows = self._rows_until_fault(rows)
        message = inner(rows)
        if scenario.point is Point.AFTER_APPENDS:
            self.inject()
        return message

    def _rows_until_fault(self, rows: Iterator[Any]) -> Iterator[Any]:
        for number, row in enumerate(rows):
            if number == self.scenario.batches:
                self.inject()
            yield row

    def inject(self) -> None:
        """In a task that has reached the point."""
        self.report(POINT_REACHED)
        if self.scenario.kind in _TASK_GOES_ON:
            return
        if self.scenario.kind is FaultKind.EXECUTOR_KILLED:
            # This process goes on for a moment, like any whose executor is lost.
            os.kill(executor_above(os.getpid()), signal.SIGKILL)
            return
        if self.scenario.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OnPurposeError(f"round {self.scenario.number}: {self.scenario.point}")

    # --- the driver ------------------------------------------------------------------------------

    def commit(self, inner: Callable[[], None]) -> None:
        point, kind = self.scenario.point, self.scenario.kind
        if point is Point.COMMIT_UNSENT:
            self.report(POINT_REACHED)
            if kind not in (FaultKind.HOST_KILLED, FaultKind.HOST_FROZEN):
                raise OnPurposeError("the commit was not sent")
        inner()
        if point is Point.COMMIT_DONE:
            self.report(POINT_REACHED)
            raise OnPurposeError("the commit's answer was lost")


def executor_above(pid: int) -> int:
    """The executor of a Python worker."""
    while EXECUTOR not in command_of(pid):
        pid = int(status_fields(pid)[1])
        if pid <= 1:
            raise OnPurposeError("this worker has no executor")
    return pid


# --- the contract, wrapped ----------------------------------------------------------------------

_CONTRACTS = (DataSourceArrowWriter, DataSourceStreamArrowWriter, DataSourceWriter, DataSourceStreamWriter)


def _failing(inner: Any, fault: Fault) -> Any:
    """A writer of the same contract around ``inner``."""
    contract: Any = next(each for each in _CONTRACTS if isinstance(inner, each))

    class Writer(contract):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return fault.write(inner.write, iterator)

        def commit(self, messages: Sequence[WriterCommitMessage | None], *batch: int) -> None:
            fault.commit(partial(inner.commit, messages, *batch))

        def abort(self, messages: Sequence[WriterCommitMessage | None], *batch: int) -> None:
            inner.abort(messages, *batch)

    return Writer()


def source_with(fault: Fault) -> type[TierlogDataSource]:
    """A data source ``tierlog_chaos``; registering another one replaces it."""

    class Source(TierlogDataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            return _failing(super().writer(schema, overwrite), fault)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark calls it so
            return _failing(super().streamWriter(schema, overwrite), fault)

    return Source
