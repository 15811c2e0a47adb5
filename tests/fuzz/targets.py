"""Every decoder of persisted bytes and every parser of requests: the one registry that all fuzzing goes
through.

A new record or request gets its ``Target`` in one of the files below. ``test_registry.py`` fails while a
decoder exists that no target reaches.
"""

from __future__ import annotations

from fuzz.bookkeeper_log_targets import BOOKKEEPER_LOG_TARGETS
from fuzz.file_targets import FILE_TARGETS
from fuzz.gateway_targets import GATEWAY_TARGETS
from fuzz.location_targets import LOCATION_TARGETS
from fuzz.log_targets import LOG_TARGETS
from fuzz.request_targets import REQUEST_TARGETS
from fuzz.run_targets import RUN_TARGETS
from fuzz.s3_log_targets import S3_LOG_TARGETS
from fuzz.spark_targets import SPARK_TARGETS
from fuzz.store_targets import STORE_TARGETS
from fuzz.target import Target

_ALL = (
    *STORE_TARGETS,
    *LOG_TARGETS,
    *FILE_TARGETS,
    *S3_LOG_TARGETS,
    *BOOKKEEPER_LOG_TARGETS,
    *REQUEST_TARGETS,
    *GATEWAY_TARGETS,
    *SPARK_TARGETS,
    *LOCATION_TARGETS,
    *RUN_TARGETS,
)
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
assert len(TARGETS) == len(_ALL), "two targets share a name"
