"""What a process of tierlog's own imports, the collector leaves alone: while it is made, afterwards, and at
the end. A host adds what its containers recover."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from tierlog.actors.kernel.process_memory import RecoveredObjects

HOST = (
    "import gc, tierlog.actors.host.__main__ as host\nprint(host.main.__module__, gc.isenabled(), "
    "len(gc.get_objects()) < 5_000)"
)
IMPORTING = (
    "import gc\nfrom tierlog.actors.kernel.process_memory import importing as i\nwith i():\n    "
    "print(gc.isenabled())\nprint(gc.isenabled())"
)
APP = (
    "import gc, tierlog\ntierlog.open_store\nyoung = gc.get_objects(0) + gc.get_objects(1)\n"
    "print(gc.isenabled(), gc.get_freeze_count(), len(young) < 5_000)"
)
END = (
    "import gc, sys\nfrom tierlog.actors.cli import main\nsys.argv[1:] = ['nothing']\nprint(main(), "
    "len(gc.get_objects()) < 5_000)"
)


@pytest.mark.parametrize(
    "program, printed",
    [
        (HOST, "tierlog.actors.host.main True True\n"),
        (IMPORTING, "False\nTrue\n"),
        (APP, "True 0 True\n"),
        (END, "2 True\n"),
    ],
    ids=["a host's start", "the collector waits", "an app's import", "a command's end"],
)
def test_the_collector_does_not_look_at_what_stays(program: str, printed: str) -> None:
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == printed
    )


class Collector:
    """Counts what is asked of Python's collector."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.full = 0
        self.owned: set[tuple[int, int]] = set()
        self.recovered = RecoveredObjects(lambda: self.owned, lambda: self.full)
        monkeypatch.setattr(gc, "freeze", lambda: self.calls.append("freeze"))
        monkeypatch.setattr(gc, "unfreeze", lambda: self.calls.append("unfreeze"))

    def check(self) -> list[str]:
        """What two rounds of the loop do."""
        self.calls.clear()
        for _ in range(2):
            self.recovered.check()
        return list(self.calls)


def test_what_each_container_recovers_is_excluded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(monkeypatch)
    assert collector.check() == []
    collector.owned = {(0, 1)}
    assert collector.check() == ["freeze"]
    collector.owned = {(0, 1), (1, 7)}
    assert collector.check() == ["freeze"]


@pytest.mark.parametrize("later", [{(1, 7)}, {(0, 2), (1, 7)}], ids=["moved", "opened again"])
def test_what_an_ended_container_leaves_is_collected_before_the_rest_is_excluded_again(
    later: set[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = Collector(monkeypatch)
    collector.owned = {(0, 1), (1, 7)}
    collector.check()
    collector.owned = later
    assert collector.check() == ["unfreeze"]
    assert collector.check() == []
    collector.full += 1
    assert collector.check() == ["freeze"]
    collector.owned = set()
    assert collector.check() == ["unfreeze"]


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_cycles_of_an_ended_container_are_freed_by_the_next_full_collection() -> None:
    owned = {(0, 1)}
    recovered, kept = RecoveredObjects(lambda: owned), Cycle()
    left = weakref.ref(kept)
    try:
        recovered.check()
        del kept
        gc.collect()
        assert left() is not None
        owned = {(0, 2)}
        recovered.check()
        gc.collect()
        assert left() is None
        recovered.check()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
