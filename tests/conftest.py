"""Every async test runs on asyncio and on trio; long tests only when asked for; those that share something costly run in one process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/spark_bridge/", "tests/packaging/test_wheel.py")
"""A JVM is started once, and a wheel is built and installed once."""

# No deadline: on a shared machine it measures the neighbours.
settings.register_profile("short", deadline=None, print_blob=True)
settings.register_profile("long", deadline=None, print_blob=True, max_examples=1_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too, and more examples of each property")
    parser.addoption(
        "--fuzz", type=float, metavar="SECONDS", help="fuzz each decoder so long, guided by coverage (tests/fuzz; needs the extra `fuzz`)"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "short")


class MostlyAlone(LoadScopeScheduling):  # type: ignore[misc]
    """Each test goes to whichever process is free, but for those that belong together."""

    def _split_scope(self, nodeid: str) -> str:
        return next((scope for scope in TOGETHER if nodeid.startswith(scope)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> MostlyAlone | None:
    return MostlyAlone(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Long rows come first, so that the other tests fill up the other process.
    items.sort(key=lambda item: not item.nodeid.startswith(TOGETHER))
    if config.getoption("--long"):
        return

    for item in items:
        if "long" in item.keywords or ("one_loop" in item.keywords and "trio" in item.name):
            item.add_marker(pytest.mark.skip(reason="long: run with --long"))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend
