"""One Spark with one JVM, and one real service, for all tests of this folder that want them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tierlog
from support import spark as support
from support.executors import ExecutorsOwn
from support.live_service import SyncOwnService

SPARK_SECONDS = 180
"""The first test that wants a session starts a JVM, and all share two cores with whatever else is tested."""


SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that runs for a minute spends most of it on the second compilation of its code."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.extended)  # a JVM needs half a minute of a core, and a gigabyte
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS))
            # PySpark leaves sockets to the garbage collector.
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
                )
            )


@pytest.fixture(scope="session")
def executors(tmp_path_factory: pytest.TempPathFactory) -> ExecutorsOwn:
    return ExecutorsOwn(tmp_path_factory.mktemp("executors"))


@pytest.fixture(scope="session")
def spark(executors: ExecutorsOwn) -> Iterator[Any]:
    """`local[2,4]`: two tasks at a time, and four attempts for each."""
    if reason := support.missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        with executors.starting():
            session = stack.enter_context(
                support.session("local[2,4]", **{"spark.driver.extraJavaOptions": SHORT_LIVED})
            )
        yield session


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with SyncOwnService(tmp_path_factory.mktemp("service") / "data", hosts=1, containers=2) as service:
        yield service.url


@pytest.fixture
def store(url: str) -> Iterator[tierlog.SyncClient]:
    with tierlog.connect_sync(url) as client:
        yield client


@pytest.fixture
def segment(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return "tests/" + re.sub(r"[^A-Za-z0-9_-]", "-", request.node.name)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def reader(spark: Any, url: str) -> Callable[..., Any]:
    """``reader(segment, option=value).load()``-ed."""

    def read(segment: str, schema: str | None = None, **options: str) -> Any:
        built = spark.read.format("tierlog").option("endpoint", url).options(**options)
        return (built if schema is None else built.schema(schema)).load(segment)

    return read


@pytest.fixture
def write(url: str) -> Callable[..., None]:
    def write(frame: Any, segment: str, source: str = "tierlog", **options: str) -> None:
        frame.write.format(source).option("endpoint", url).options(**options).mode("append").save(segment)

    return write
