"""The tests of rule H16 for any server: what Schemathesis finds wrong with it, by its own OpenAPI document.

One run makes all its checks on all operations of the document, from a fixed seed. Each finding is text with
the request that repeats it.

Batches are generated as batches: their bytes are no text that a JSON Schema could describe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import anyio.from_thread
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema

from tierlog.actors.gateway.wire.batch import BATCH_TYPE, BatchItem, encode_batch

_ITEM = st.builds(BatchItem, st.sampled_from(["0", "a", "b/c#1"]), st.binary(max_size=64))
schemathesis.openapi.media_type(
    BATCH_TYPE, st.lists(_ITEM, min_size=1, max_size=5).map(encode_batch).map(b"".join)
)

ANSWERS = ["2xx", "404", "409", "410", "412", "416"]
"""What a request that is well-formed may be answered with, whatever the segments are: never 400, 413, 415 or
anything of the 5xx."""


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """JSON Schema calls 1.0 an integer; this server takes the digits only (rule H8)."""
    return _exact(body)


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _exact(member) for name, member in value.items()}

    if isinstance(value, list):
        return [_exact(item) for item in value]

    return int(value) if isinstance(value, float) and value.is_integer() else value


class SchemaTests(ABC):
    """The server does what its OpenAPI document says, whatever is sent to it (rule H16)."""

    refusals: ClassVar[Mapping[str, list[str]]] = {}
    """Operations whose parameters depend on each other in ways that a document cannot say, and the statuses
    that well-formed requests may therefore get beside ``ANSWERS``."""
    excluded: ClassVar[str | None] = None
    """A pattern of paths that are left out."""
    requests_min: ClassVar[int]
    """How many requests the short test sends at least."""

    @abstractmethod
    def served(self, folder: Path) -> AbstractAsyncContextManager[str]:
        """Serves in ``folder``; enters with the server's URL."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> Iterator[str]:
        with (
            anyio.from_thread.start_blocking_portal("asyncio") as portal,
            portal.wrap_async_context_manager(self.served(tmp_path)) as found,
        ):
            yield found

    @pytest.mark.timeout(120)
    def test_h16_generated_requests_get_answers_that_the_document_names(self, url: str) -> None:
        found, count = findings(url, examples=3, refusals=self.refusals, excluded=self.excluded)

        assert found == [], found
        assert count > self.requests_min

    @pytest.mark.long
    @pytest.mark.timeout(1200)
    def test_h16_many_generated_requests_get_answers_that_the_document_names(self, url: str) -> None:
        found, _ = findings(url, examples=100, refusals=self.refusals, excluded=self.excluded)

        assert found == [], found


def findings(
    url: str, *, examples: int, refusals: Mapping[str, list[str]], excluded: str | None = None
) -> tuple[list[str], int]:
    """(what is wrong, how many requests were sent)."""
    schema = schemathesis.openapi.from_url(
        f"{url}/openapi.json", config=SchemathesisConfig.from_dict(_config(examples, refusals))
    )
    selected = schema if excluded is None else schema.exclude(path_regex=excluded)
    found: list[str] = []
    count = 0
    for event in from_schema(selected).execute():
        match event:
            case events.ScenarioFinished():
                count += len(event.recorder.interactions)
                found += _failures(event.recorder)
            case events.NonFatalError():
                found.append(f"{event.label}: {event.value}")
            case events.FatalError():
                raise event.exception

    return found, count


def _config(examples: int, refusals: Mapping[str, list[str]]) -> dict[str, Any]:
    def accepted(more: list[str]) -> dict[str, Any]:
        return {"positive_data_acceptance": {"expected-statuses": [*ANSWERS, *more]}}

    return {
        "seed": 1,
        "request-timeout": 10,
        "generation": {"deterministic": True, "max-examples": examples, "database": "none"},
        "checks": accepted([]),
        "operations": [
            {"include-operation-id": name, "checks": accepted(more)} for name, more in refusals.items()
        ],
    }


def _failures(recorder: Any) -> Iterator[str]:
    for case, checks in recorder.checks.items():
        for check in checks:
            if check.status is Status.FAILURE:
                response = recorder.interactions[case].response
                answer = "" if response is None else f"\n{response.status_code} {response.content[:500]!r}"
                failure = check.failure_info
                described = f"{failure.failure.title}\n{failure.failure.message}\n{failure.code_sample}"
                yield f"{check.name}: {described}{answer}"
