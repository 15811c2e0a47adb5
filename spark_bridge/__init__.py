"""The PySpark data source ``tierlog``: batch and streaming, reading and writing (``docs/spark.md``).

Spark discovers it through the top-level package ``pyspark_tierlog``;
``spark.dataSource.register(TierlogDataSource)`` registers it by hand. The class is imported at its first use,
because it needs PySpark, which ``tierlog.events`` does not."""

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
