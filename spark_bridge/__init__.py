"""Spark's door: the data source ``tierlog`` for PySpark, batch and streaming, read and write
(``docs/spark.md``).

``spark.dataSource.register(TierlogDataSource)``, or nothing at all: Spark finds the top-level package
``pyspark_tierlog`` by itself.

The data source is loaded at its first use, because it needs PySpark, and the modules that need no Spark shall
not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # By its whole name: type checkers also meet this folder as the parent of the tests that mirror it.
    from tierlog.spark_bridge.source import TierlogDataSource

__all__ = ["TierlogDataSource"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    value: object = getattr(import_module(".source", __name__), name)
    return value
