"""Every async test runs on asyncio and on trio; long tests only when asked for."""

from __future__ import annotations

import pytest
from hypothesis import settings

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return

    for item in items:
        if "long" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="long: run with --long"))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend
