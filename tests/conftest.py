"""Every async test runs on asyncio and on trio; long tests only when asked for; those that share something
costly come first."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from simulation.loop import seed_scheduler

from support.patience import scaled
from support.watchdog import Watchdog

_MEMORY = Path("/proc/self/statm")
_GROWTH = 64 << 20
"""What tests leave in cycles is collected when it is so much: the collector counts objects, and large buffers
are few."""
_COLLECTED = pytest.StashKey[int]()
"""The process's memory after the last time."""
_YOUNG = 7_000
"""Objects after which the young ones are collected: ten times Python's number. That takes a twentieth of the
time of most tests, and few leave cycles."""
_WATCHDOG = pytest.StashKey[Watchdog]()

TOGETHER = ("tests/spark_bridge/", "tests/packaging/test_wheel.py", "tests/storage_backends/ledgers/")
"""Spark and BookKeeper are started once, and a wheel is built and installed once."""

# No deadline, and examples may come slowly: on a shared machine such limits measure the neighbours. The short
# profile has the same examples in every run: what a run finds is about the change. The long one looks for new
# ones.
_UNTIMED: dict[str, Any] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("short", **_UNTIMED, derandomize=True, max_examples=25)
settings.register_profile("long", **_UNTIMED, max_examples=1_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="run the tests marked `extended` and `long` too, and more examples of each property",
    )
    parser.addoption(
        "--fuzz",
        type=float,
        metavar="SECONDS",
        help="fuzz each decoder so long, guided by coverage (tests/fuzz; needs the extra `fuzz`)",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Tests start hundreds of processes. Each would compile every module anew where the environment keeps
    # Python from writing bytecode; so would pytest, which rewrites the assertions of all test modules first.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # What a shell starts in the background ignores interrupts, and so would all that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all tests are collected, which stay to the end
    config.stash[_COLLECTED] = _resident_bytes()
    config.stash[_WATCHDOG] = watchdog = Watchdog(config.pluginmanager.getplugin("capturemanager"))
    watchdog.start()
    settings.load_profile("long" if config.getoption("--long") else "short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The first process begins with these, and what is stolen from it is taken from its end.
    items.sort(key=lambda item: not item.nodeid.startswith(TOGETHER))
    for item in items:
        if "one_loop" in item.keywords and "trio" in item.name:
            item.add_marker(pytest.mark.extended)
    if config.getoption("--long"):
        return

    left_out = [item for item in items if _is_left_out(item, extended="extended" in config.option.markexpr)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        out = set(left_out)
        items[:] = [item for item in items if item not in out]


def _is_left_out(item: pytest.Item, *, extended: bool) -> bool:
    return "long" in item.keywords or ("extended" in item.keywords and not extended)


def pytest_collection_finish() -> None:
    gc.enable()
    gc.set_threshold(_YOUNG, 10, 10)
    # The tests themselves are a large heap that stays to the end: each full collection of it takes a second.
    gc.collect()
    gc.freeze()
    # The next full collection waits until the heap has grown by a quarter of what the last one saw. Without
    # this one that would be the frozen heap, and what the tests leave in cycles would grow to gigabytes.
    gc.collect()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test's limit grows with the load at its start; ``pytest-timeout`` reads it next."""
    marker = item.get_closest_marker("timeout")
    seconds = marker.args[0] if marker else float(item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(scaled(seconds)), append=False)
    outcome = yield
    if _resident_bytes() > _GROWTH + item.config.stash[_COLLECTED]:
        gc.collect()
        item.config.stash[_COLLECTED] = _resident_bytes()
    return outcome


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Trio draws which of the ready tasks is first. Like Hypothesis, it draws the same in every short run."""
    if not item.config.getoption("--long"):
        seed_scheduler(item.nodeid)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """In place of ``pytest-timeout``'s own, which starts a thread for each test and, in a process of
    ``pytest-xdist``, reports to ``/dev/null``."""
    watchdog = item.config.stash[_WATCHDOG]
    watchdog.begin(item.nodeid, settings.timeout)
    item.cancel_timeout = watchdog.end  # type: ignore[attr-defined]  # what it calls
    return True


def _resident_bytes() -> int:
    """The resident bytes of this process; 0 where the system does not report them."""
    if not _MEMORY.exists():
        return 0
    return int(_MEMORY.read_bytes().split()[1]) * resource.getpagesize()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend
