"""The data source: checks options and schema on the driver, before any task runs, and creates readers and
writers.

Spark starts a Python process for each step of its own: one that looks for data sources, one that makes them,
others that plan reads and writes. All import this module, so it imports the rest of the bridge only where a
step needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .worker_heap import worker_heap

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .options import Options
    from .reader import TierlogReader
    from .stream_reader import TierlogStreamReader
    from .writer import BatchArrowWriter, BatchRowWriter, Job, StreamArrowWriter, StreamRowWriter


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

    def __init__(self, options: dict[str, str]) -> None:
        worker_heap.make()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "tierlog"

    def schema(self) -> str:
        from .schema import READ_SCHEMA, VALUE_SCHEMA

        return READ_SCHEMA if self._options().include_metadata else VALUE_SCHEMA

    def reader(self, schema: StructType) -> TierlogReader:
        from .options import check_batch_read
        from .reader import TierlogReader
        from .schema import columns_of, read_columns

        # Spark plans a read in one of its Python workers, which it uses again for tasks.
        worker_heap.begin()
        options = self._options()
        check_batch_read(options)
        return TierlogReader(options, read_columns(columns_of(schema)))

    def streamReader(self, schema: StructType) -> TierlogStreamReader:  # noqa: N802 - Spark calls it so
        from .options import check_stream_read
        from .schema import columns_of, read_columns
        from .stream_reader import TierlogStreamReader

        options = self._options()
        check_stream_read(options)
        return TierlogStreamReader(options, read_columns(columns_of(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> BatchArrowWriter | BatchRowWriter:
        from .options import Rows, check_batch_write
        from .writer import BatchArrowWriter, BatchRowWriter, batch_identity

        if overwrite:
            from ..storage_backends.base.errors import InvalidArgument

            raise InvalidArgument("a segment cannot be overwritten: write with mode('append')")

        options = self._options()
        job = self._job(options, check_batch_write(options), schema)
        # A wrong endpoint is one error on the driver here; later it would be one for each attempt of each
        # task.
        job.prepare()
        kind = BatchArrowWriter if options.rows is Rows.ARROW else BatchRowWriter
        # Drawn here, because Spark pickles this one writer into every task and its retries.
        return kind(job, batch_identity(job))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter | StreamRowWriter:  # noqa: N802
        """In complete mode (``overwrite``) each micro-batch appends the whole result again, as Spark's Kafka
        sink does."""
        from .options import Rows, check_stream_write
        from .writer import StreamArrowWriter, StreamRowWriter

        options = self._options()
        job = self._job(options, check_stream_write(options), schema)
        job.prepare_batch()
        return StreamArrowWriter(job) if options.rows is Rows.ARROW else StreamRowWriter(job)

    def _options(self) -> Options:
        from .options import parse_options

        return parse_options(self.options)

    def _job(self, options: Options, target: str, schema: StructType) -> Job:
        from .schema import columns_of, written_column
        from .writer import Job

        worker_heap.begin()
        return Job(options, target, written_column(columns_of(schema)))
