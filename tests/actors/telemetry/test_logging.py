"""What the events of the log look like."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import copy_context

import pytest

from tierlog.actors.telemetry.logging import add_to_events, get_logger, log_to_stderr


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a process that logs JSON writes to stderr."""
    root, logger = logging.getLogger(), logging.getLogger("tierlog")
    handlers, levels = root.handlers[:], (root.level, logger.level)
    root.handlers.clear()
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    log_to_stderr("info", host="h1")
    yield stream
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    logger.setLevel(levels[1])


def test_an_event_is_its_name_and_its_values(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("gc").warning("gc_listing_failed", prefix="a/%s", count=2)
    (record,) = caplog.records
    assert record.getMessage() == "event='gc_listing_failed' prefix='a/%s' count=2"
    assert (record.name, record.levelno, record.filename) == (
        "tierlog.gc",
        logging.WARNING,
        "test_logging.py",
    )


def test_values_of_a_task_are_in_its_events_only(caplog: pytest.LogCaptureFixture) -> None:
    def of_one_request() -> None:
        add_to_events(request_id="r1")
        add_to_events(trace_id="t1")
        get_logger("http").warning("refused")

    copy_context().run(of_one_request)
    get_logger("http").warning("refused")
    assert caplog.messages == ["event='refused' request_id='r1' trace_id='t1'", "event='refused'"]


def test_a_line_is_written_also_when_the_clock_is_beyond_the_calendar(lines: io.StringIO) -> None:
    record = logging.LogRecord("tierlog.gc", logging.INFO, "gc.py", 1, "swept", (), None)
    record.created = 1e12
    logging.getLogger().handle(record)
    assert json.loads(lines.getvalue())["timestamp"] == "1000000000000 s since 1970"


def test_a_json_line_has_the_process_the_values_and_the_time(lines: io.StringIO) -> None:
    get_logger("gc").info("swept", path=io, count=2)
    line = json.loads(lines.getvalue())
    time = line.pop("timestamp")
    assert line == {
        "host": "h1",
        "path": str(io),
        "count": 2,
        "event": "swept",
        "level": "info",
        "logger": "tierlog.gc",
    }
    assert time.endswith("Z")
    assert time[10] == "T"


def test_an_unexpected_error_comes_with_its_traceback(lines: io.StringIO) -> None:
    try:
        raise ValueError("not expected")
    except ValueError as error:
        get_logger("http").error("unexpected_error", exc_info=error, operation="read")
    line = json.loads(lines.getvalue())
    assert (line["event"], line["operation"], line["level"]) == ("unexpected_error", "read", "error")
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: not expected")


def test_what_other_libraries_log_is_json_too(lines: io.StringIO) -> None:
    logging.getLogger("other").warning("100 %s", "percent")
    line = json.loads(lines.getvalue())
    assert (line["event"], line["logger"], line["host"]) == ("100 percent", "other", "h1")
