"""The data source: checks options and schema on the driver, before any task runs, and creates readers and
writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ..storage_backends.base.errors import InvalidArgument
from . import options as rules
from .options import Options, Rows, parse_options
from .reader import TierlogReader
from .schema import READ_SCHEMA, VALUE_SCHEMA, columns_of, read_columns, written_column
from .stream_reader import TierlogStreamReader
from .worker_heap import worker_heap
from .writer import BatchArrowWriter, BatchRowWriter, Job, StreamArrowWriter, StreamRowWriter, batch_identity

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TierlogDataSource(DataSource):
    """Segments of a tierlog service, as rows with one event each.

    Name: ``tierlog``

    Options: ``endpoint`` (the URL of the service) and ``segment`` (or the argument of ``load`` and ``save``)
    are required. ``tierlog.spark_bridge.options.Options`` documents all options, with their units and
    defaults.

    Examples

    >>> from tierlog.spark_bridge import TierlogDataSource
    >>> spark.dataSource.register(TierlogDataSource)

    Write the column ``value`` (binary or string), exactly once:

    >>> df.write.format("tierlog").option("endpoint", url).mode("append").save("app/events")

    Read it back as ``segment``, ``offset`` and ``value``:

    >>> spark.read.format("tierlog").option("endpoint", url).load("app/events").show()

    The same as streams:

    >>> stream = spark.readStream.format("tierlog").option("endpoint", url).load("app/events")
    >>> writer = stream.select("value").writeStream.format("tierlog").option("endpoint", url)
    >>> writer.option("segment", "app/copy").option("checkpointLocation", folder).start()
    """

    @classmethod
    def name(cls) -> str:
        return "tierlog"

    def schema(self) -> str:
        return READ_SCHEMA if self._options().include_metadata else VALUE_SCHEMA

    def reader(self, schema: StructType) -> TierlogReader:
        # Spark plans a read in one of its Python workers, which it uses again for tasks.
        worker_heap.begin()
        options = self._options()
        rules.check_batch_read(options)
        return TierlogReader(options, read_columns(columns_of(schema)))

    def streamReader(self, schema: StructType) -> TierlogStreamReader:  # noqa: N802 - Spark calls it so
        options = self._options()
        rules.check_stream_read(options)
        return TierlogStreamReader(options, read_columns(columns_of(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> BatchArrowWriter | BatchRowWriter:
        if overwrite:
            raise InvalidArgument("a segment cannot be overwritten: write with mode('append')")

        options = self._options()
        job = self._job(options, rules.check_batch_write(options), schema)
        kind = BatchArrowWriter if options.rows is Rows.ARROW else BatchRowWriter
        # Drawn here, because Spark pickles this one writer into every task and its retries.
        return kind(job, batch_identity(job))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter | StreamRowWriter:  # noqa: N802
        """In complete mode (``overwrite``) each micro-batch appends the whole result again, as Spark's Kafka
        sink does."""
        options = self._options()
        job = self._job(options, rules.check_stream_write(options), schema)
        return StreamArrowWriter(job) if options.rows is Rows.ARROW else StreamRowWriter(job)

    def _options(self) -> Options:
        return parse_options(self.options)

    def _job(self, options: Options, target: str, schema: StructType) -> Job:
        worker_heap.begin()
        job = Job(options, target, written_column(columns_of(schema)))
        # A wrong endpoint is one error on the driver here; later it would be one for each attempt of each
        # task.
        job.prepare()
        return job
