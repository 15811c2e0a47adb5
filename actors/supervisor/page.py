"""The status page: a small HTML document without scripts that reloads itself every two seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1rem; margin: 2rem 0 .5rem }
div { overflow-x: auto } p { overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884 }
th { font-weight: 600 } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
.good { color: #2a7d3f } .bad { color: #c0392b } .dim { opacity: .7 }
"""
_GOOD = "serving"
_HOST_COLUMNS = (
    ("host", "id"),
    ("phase", "phase"),
    ("machine", "machine"),
    ("pid", "pid"),
    ("containers", "containers"),
    ("lag, ms", "lag_ms"),
    ("storage", "storage"),
    ("starts", "starts"),
    ("last exit", "last_exit"),
)
_CONTAINER_COLUMNS = (
    ("container", "container"),
    ("phase", "phase"),
    ("host", "host"),
    ("epoch", "epoch"),
    ("segments", "segments"),
    ("WAL bytes", "wal_bytes"),
    ("unflushed bytes", "unflushed_bytes"),
    ("reason", "reason"),
)


def status_page(status: dict[str, Any], escape: Callable[[str], str]) -> str:
    hosts = [_host_row(host) for host in status["hosts"]]
    word, mood = (
        ("ready", "good")
        if status["ready"]
        else ("stopping", "dim")
        if status["stopping"]
        else ("not ready", "bad")
    )
    recent = ", ".join(f"{seconds * 1000:.0f} ms" for seconds in status["failover_seconds"][-5:]) or "none"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tierlog: {word}</title><style>{_STYLE}</style></head><body>
<h1>tierlog: <span class="{mood}">{word}</span></h1>
<p class="dim">{escape(str(status.get("folder", "")))} &middot; supervisor: process {status.get("pid", "")}
on {escape(str(status.get("machine", "")))} at {escape(str(status.get("url", "")))}, term {status["term"]},
active for {timedelta(seconds=round(status["active_seconds"]))}
&middot; failovers {status["failovers"]}, the last took {escape(recent)}</p>
{_imbalance(status["imbalance"], escape)}<h2>Hosts</h2>{_table(_HOST_COLUMNS, hosts, escape)}
<h2>Containers</h2>{_table(_CONTAINER_COLUMNS, status["containers"], escape)}
</body></html>
"""


def _imbalance(found: dict[str, Any], escape: Callable[[str], str]) -> str:
    reason = escape(found["reason"])
    return f"<p>{found['containers']} containers still to move: {reason}</p>\n" if found["containers"] else ""


def _host_row(host: dict[str, Any]) -> dict[str, Any]:
    storage = host["storage"]
    health = f"{storage['state']}: {storage['cause']}" if storage["cause"] else storage["state"]
    return {
        **host,
        "machine": f"{host['machine']}{' (joined)' if host['joined'] else ''}",
        "lag_ms": round(host["lag_seconds"] * 1000),
        "containers": len(host["containers"]),
        "storage": health,
    }


def _table(
    columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]], escape: Callable[[str], str]
) -> str:
    head = "".join(f"<th{_kind(rows, key)}>{escape(title)}</th>" for title, key in columns)
    body = "".join(f"<tr>{''.join(_cell(rows, row, key, escape) for _, key in columns)}</tr>" for row in rows)
    return f"<div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(rows: Sequence[dict[str, Any]], row: dict[str, Any], key: str, escape: Callable[[str], str]) -> str:
    kind = _kind(rows, key)
    if key == "phase":
        kind = f' class="{"good" if row[key] == _GOOD else "bad"}"'
    # Escaped: reasons quote errors, which quote names that clients chose.
    return f"<td{kind}>{escape(str(row[key]))}</td>"


def _kind(rows: Sequence[dict[str, Any]], key: str) -> str:
    return ' class="number"' if rows and isinstance(rows[0][key], int | float) else ""
