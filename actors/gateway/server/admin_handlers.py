"""What operators and their tools ask a server: is it alive, is it ready, what does it count, who serves what.

Owns: these answers, and the small page on ``/``. Does not own: the numbers (the store and ``traffic.py``
count), nor the map of containers (whoever knows the other hosts gives it).

``/health`` says that the event loop turns: a process that recovers is alive. It also names trouble with
long-term storage and its cause, which is no reason to end a process: appends go on, and flushes resume by
themselves (rule S7). ``/ready`` says that all that is served here answers.
"""

from __future__ import annotations

from html import escape

from ...chunk_io.health import StorageHealthStatistics
from ...telemetry.metrics import CONTENT_TYPE
from ..wire.documents import map_document, status_document
from .call import Answer, Call, document


async def health(call: Call) -> Answer:
    storage = call.server.store.statistics().storage
    health = StorageHealthStatistics() if storage is None else storage.health
    return document({"alive": True, "storage": health.document()})


async def ready(call: Call) -> Answer:
    status = call.server.status()
    return document(status_document(status), 200 if status.ready else 503)


async def metrics(call: Call) -> Answer:
    gateway = call.server
    return Answer(200, gateway.metrics.render(lambda: (gateway.store.statistics(),)), CONTENT_TYPE)


async def containers(call: Call) -> Answer:
    call.query()
    return document(map_document(call.server.container_map()))


async def page(call: Call) -> Answer:
    status = call.server.status()
    rows = "".join(
        f"<tr><td>{container.container}</td><td>{escape(container.state)}</td></tr>"
        for container in status.containers
    )
    word = "draining" if status.draining else "ready" if status.ready else "not ready"
    body = _PAGE.format(word=word, tails=call.server.tails, rows=rows)
    return Answer(200, body.encode(), "text/html; charset=utf-8")


_PAGE = """<!doctype html>
<title>tierlog</title>
<h1>tierlog: {word}</h1>
<p>{tails} readers wait at tails. See <a href="/metrics">metrics</a> and the <a href="/openapi.json">API</a>.</p>
<table><tr><th>container</th><th>state</th></tr>{rows}</table>
"""
