"""The door through which Spark finds the data source ``tierlog``: it looks for ``DefaultSource`` in every
top-level ``pyspark_*`` package.

Nothing is imported before Spark asks, and asking never raises anything but ``AttributeError``: one package
that fails here would hide the data sources of all others from Spark. What went wrong is told as a warning
instead.
"""

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
