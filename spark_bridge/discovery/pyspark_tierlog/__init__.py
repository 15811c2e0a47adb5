"""Lets Spark discover the data source ``tierlog``: Spark asks every top-level package ``pyspark_*`` for
``DefaultSource``.

Nothing is imported until then, and asking raises only ``AttributeError``: any other error of one package
would hide the data sources of all others. The cause is logged as a warning."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierlog.spark_bridge import TierlogDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    try:
        from tierlog.spark_bridge import TierlogDataSource
    except Exception as error:
        import logging

        logging.getLogger(__name__).warning(
            "Spark cannot use the data source 'tierlog': %s: %s", type(error).__name__, error
        )
        raise AttributeError(f"{__name__}.{name} cannot be loaded: {error}") from error

    return TierlogDataSource
