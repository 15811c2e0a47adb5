"""The examples do what they say, and once however often they are run."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_java import find_java
from support.spark import ROOT, missing, written
from tierlog import SyncClient
from tierlog.spark_bridge import events

EXAMPLES = Path(ROOT) / "examples"
Run = Callable[..., None]


@pytest.fixture
def run(spark: Any, url: str) -> Run:
    """Run an example in this process: its session is the one that the example gets."""

    def main(example: str, *arguments: str) -> None:
        runpy.run_path(str(EXAMPLES / example))["main"](["--endpoint", url, *arguments])

    return main


def test_an_import_is_there_once(
    run: Run, store: SyncClient, segment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n\nthree\n")
    for _ in range(2):
        run("batch_import.py", "--name", "lines", str(tmp_path / "lines.txt"), segment)

    assert capsys.readouterr().out == f"{segment} has 4 events\n" * 2
    assert written(store, segment) == [b"one", b"two", b"", b"three"]


def test_words_are_counted_as_they_come(run: Run, store: SyncClient, segment: str, checkpoint: str) -> None:
    source, target = f"{segment}/lines", f"{segment}/counts"
    store.create_segment(source)
    for lines in ([b"to be or not", b"to be"], [b"Be!"]):
        store.append(source, events.encode(lines))
        run("streaming_word_count.py", "--once", "--checkpoint", checkpoint, source, target)

    counts = [json.loads(event) for event in written(store, target)]
    assert {each["word"]: each["count"] for each in counts[:4]} == {"to": 2, "be": 2, "or": 1, "not": 1}
    assert {each["word"]: each["count"] for each in counts[4:]} == {"to": 2, "be": 3, "or": 1, "not": 1}


def test_events_are_sorted_into_two_segments(
    run: Run, store: SyncClient, segment: str, checkpoint: str
) -> None:
    names = [f"{segment}/{name}" for name in ("lines", "errors", "rest")]
    store.create_segment(names[0])
    for lines in ([b"fine", b"an ERROR"], [b"ERROR", b"fine too"]):
        store.append(names[0], events.encode(lines))
        run("foreach_batch.py", "--once", "--checkpoint", checkpoint, *names)

    assert written(store, names[1]) == [b"an ERROR", b"ERROR"]
    assert written(store, names[2]) == [b"fine", b"fine too"]


@pytest.mark.extended
@pytest.mark.timeout(180)
def test_an_example_runs_in_a_virtual_environment_that_is_not_activated(
    url: str, store: SyncClient, segment: str, tmp_path: Path
) -> None:
    """The ``python3`` of the PATH is one that has no tierlog."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path / "bin"
    folder.mkdir()
    without = folder / "python3"
    without.symlink_to(os.path.realpath(sys.executable))
    assert subprocess.run([without, "-c", "import tierlog"], capture_output=True, check=False).returncode
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    environment["PATH"] = os.pathsep.join((str(folder), os.environ["PATH"]))
    environment.update(find_java(), SPARK_LOCAL_IP="127.0.0.1")

    done = subprocess.run(
        [sys.executable, EXAMPLES / "batch_import.py", "--endpoint", url, "lines.txt", segment],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{segment} has 2 events\n"
    assert written(store, segment) == [b"one", b"two"]
