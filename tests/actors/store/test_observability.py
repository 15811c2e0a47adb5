"""Observability of a store: spans around appends, statistics as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import tierlog

pytestmark = pytest.mark.anyio


async def test_every_append_is_inside_a_span(tmp_path: Path) -> None:
    spans: list[tuple[str, dict[str, object], str]] = []

    @contextmanager
    def span(name: str, attributes: Mapping[str, object], links: Sequence[object] = ()) -> Iterator[None]:
        spans.append((name, dict(attributes), "begun"))
        try:
            yield
        except tierlog.TierlogError as error:
            spans.append((name, {}, error.code))
            raise
        spans.append((name, {}, "ended"))

    async with tierlog.open_store(tmp_path, containers=1, span=span) as store:
        await store.create_segment("s")
        assert await store.append("s", b"abc") == 0
        assert await store.append_many("s", [b"d", b"e"], writer_id="w", first_event_number=1) == 3
        with pytest.raises(tierlog.SegmentNotFound):
            await store.append("other", b"x")

    spans = [span for span in spans if not span[0].startswith("tierlog.chunk_storage.")]
    begun = [attributes for _, attributes, step in spans if step == "begun"]
    assert begun == [
        {"container": 0, "segment": "s"},
        {"container": 0, "segment": "s", "bytes": 3, "count": 1},
        {"container": 0, "segment": "s", "bytes": 2, "count": 2},
        {"container": 0, "segment": "other", "bytes": 1, "count": 1},
    ]
    assert [step for _, _, step in spans if step != "begun"] == [
        "ended",
        "ended",
        "ended",
        "segment-not-found",
    ]
    assert {name for name, _, _ in spans} == {"tierlog.append", "tierlog.create_segment"}


async def test_metrics_name_each_container(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path, containers=2) as store:
        await store.create_segment("s")
        await store.append("s", b"abc")
        text = store.metrics().decode()

    for container in ("0", "1"):
        assert f'tierlog_container_segments{{container="{container}"}}' in text

    assert "# TYPE tierlog_pipeline_operations_total counter" in text
