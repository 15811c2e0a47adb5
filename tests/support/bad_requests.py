"""Requests that no server may take, generated from a seed: a defect each, and random surroundings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random

Headers = list[tuple[bytes, bytes]]
HOST = (b"Host", b"localhost")
JSON = (b"Content-Type", b"application/json")
BATCH = (b"Content-Type", b"application/x-tierlog-batch")


def bad_requests(seed: int, count: int) -> Iterator[bytes]:
    """Defects take turns, so that each occurs whatever the count is."""
    random = Random(seed)
    for number in range(count):
        yield DEFECTS[number % len(DEFECTS)](random)


def request(
    random: Random,
    *,
    method: bytes = b"POST",
    path: bytes = b"/v1/flush",
    version: bytes = b" HTTP/1.1",
    headers: Headers | None = None,
    body: bytes = b"",
    framing: Headers | None = None,
) -> bytes:
    """One request with random headers around those that matter, in random order."""
    if framing is None:
        framing = [(b"Content-Length", b"%d" % len(body))]
    lines = [*([HOST, JSON] if headers is None else headers), *framing, *_noise(random)]
    random.shuffle(lines)
    head = b"".join(b"%s: %s\r\n" % line for line in lines)
    behind = random.choice([b"", b"", b"\r\n\r\n", random.randbytes(20), b"GET /none HTTP/1.1\r\n"])
    return b"%s %s%s\r\n%s\r\n%s%s" % (method, path, version, head, body, behind)


def _noise(random: Random) -> Headers:
    known = [
        (b"X-Request-Id", random.choice([b"r-1", b"x" * 500, b"\xff\xfe", b"a b"])),
        (b"Expect", b"100-continue"),
        (b"Connection", random.choice([b"keep-alive", b"close", b"Upgrade, HTTP2-Settings", b"x" * 300])),
        (b"Upgrade", random.choice([b"h2c", b"websocket", b"TLS/1.0"])),
        (b"traceparent", b"00-zz-zz-01"),
        (b"Tierlog-Writer-Id", random.choice([b"%", b"", b"x" * 100])),
        (b"Range", b"bytes=9-1"),
        (b"Accept-Encoding", b"gzip"),
        (b"Cookie", bytes(random.choices(range(33, 127), k=random.randrange(1, 2000)))),
    ]
    return random.sample(known, random.randrange(4))


def _chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


CHUNKED = [(b"Transfer-Encoding", b"chunked")]


def _host(random: Random) -> bytes:
    hosts = [
        [],
        [HOST, HOST],
        [(b"Host", random.choice([b"evil.example", b"", b"[::", b"localhost:x", b"a b"]))],
    ]
    return request(random, method=random.choice([b"GET", b"POST"]), headers=[*random.choice(hosts), JSON])


def _page(random: Random) -> bytes:
    sent = random.choice(
        [
            [(b"Origin", random.choice([b"null", b"http://evil.example", b"http://[", b"", b"localhost"]))],
            [(b"Origin", b"http://localhost"), (b"Origin", b"http://localhost")],
            [(b"Sec-Fetch-Site", b"cross-site")],
        ]
    )
    path = random.choice([b"/v1/flush", b"/v1/segments/a/seal", b"/v1/segments/new/create", b"/v1/batch"])
    return request(random, path=path, headers=[HOST, *sent])


def _line(random: Random) -> bytes:
    version = random.choice(
        [b"", b" HTTP/2.0", b" HTTP/0.9", b" HTTP/1.2", b" http/1.1", b" HTTP/1.1 x", b" XYZ/1.1"]
    )
    return request(random, method=b"GET", path=b"/health", version=version, headers=[HOST], framing=[])


def _method(random: Random) -> bytes:
    method = random.choice(
        [b"PUT", b"DELETE", b"PATCH", b"BREW", b"get", b"", b"G\x00T", b"CONNECT", b"X" * 5000]
    )
    return request(random, method=method, headers=[HOST])


def _path(random: Random) -> bytes:
    bad = [
        b"/none",
        b"/health/",
        b"//health",
        b"/health%0a",
        b"/v1/segments/%s/seal"
        % random.choice([b"%00", b"%ff", b"..", b"a%0d%0ab", b"a" * 9000, b"_system/x", b"%"]),
        b"/v1/none?x=1",
        b"*",
        b"http://localhost/none",
        b"/%s" % bytes(random.choices(range(33, 127), k=40)).replace(b"?", b"-").replace(b"#", b"-"),
    ]
    return request(random, path=random.choice(bad), headers=[HOST])


def _query(random: Random) -> bytes:
    path = random.choice([b"/health", b"/ready", b"/metrics", b"/openapi.json", b"/", b"/v1/containers"])
    query = random.choice([b"x=1", b"%00", b"wait=1&wait=2", b"a=" + b"b" * 3000, b"="])
    return request(random, method=b"GET", path=path + b"?" + query, headers=[HOST], framing=[])


def _coding(random: Random) -> bytes:
    codings = random.choice(
        [
            [b"gzip, chunked"],
            [b"gzip"],
            [b"identity"],
            [b"chunked", b"chunked"],
            [b"xchunked"],
            [b"chunked, gzip"],
        ]
    )
    framing = [(b"Transfer-Encoding", coding) for coding in codings]
    return request(random, framing=framing, body=_chunked(b"{}"))


def _old_coding(random: Random) -> bytes:
    return request(random, version=b" HTTP/1.0", framing=CHUNKED, body=_chunked(b"{}"))


def _length(random: Random) -> bytes:
    sizes = random.choice(
        [[b"-1"], [b"+2"], [b"0x2"], [b"2", b"3"], [b"2,2"], [b"9" * 30], [b"2 2"], [b""], [b"99999999999"]]
    )
    framing: Headers = [(b"Content-Length", size) for size in sizes]
    return request(random, framing=[*framing, *random.choice([[], CHUNKED])], body=b"{}")


def _chunk(random: Random) -> bytes:
    body = random.choice(
        [
            b"x\r\n{}\r\n0\r\n\r\n",
            b"-1\r\n",
            b"2\r\n{}XX0\r\n\r\n",
            b"f" * 20 + b"\r\n",
            b"2;" + b"e" * 400_000,
        ]
    )
    return request(random, framing=CHUNKED, body=body)


def _header(random: Random) -> bytes:
    line = random.choice(
        [b"nocolon", b"a b: c", b"x: a\x00b", b"x: a\r\n b", b": x", b"x\x01: y", b"\xe9: y"]
    )
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n"


def _large_head(random: Random) -> bytes:
    more = random.choice([[(b"X", b"y" * 70_000)], [(b"a", b"b")] * 5_000, [(b"X" * 70_000, b"y")]])
    return request(random, method=b"GET", path=b"/health", headers=[HOST, *more], framing=[])


def _type(random: Random) -> bytes:
    kind = random.choice(
        [b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data", b"", b"\xff"]
    )
    body = random.randbytes(random.choice([1, 1000, 300_000]))
    return request(random, headers=[HOST, (b"Content-Type", kind)], body=body)


def _json(random: Random) -> bytes:
    body = random.choice(
        [
            random.randbytes(random.randrange(1, 2000)),
            b"[" * 50_000,
            b'{"a": 1}',
            b'{"a": 1, "a": 2}',
            json.dumps({"x": "y" * random.randrange(100_000)}).encode()[:-1],
            b"null",
            b'"\xff"',
            b"1e999",
        ]
    )
    return request(random, body=body)


def _encoded(random: Random) -> bytes:
    return request(
        random, headers=[HOST, JSON, (b"Content-Encoding", random.choice([b"gzip", b"br", b"x"]))], body=b"{}"
    )


def _batch(random: Random) -> bytes:
    bodies = [
        random.randbytes(random.randrange(1, 3000)),
        b"TLB1" + random.randbytes(100),
        b"TLB1\xff\xff\xff\xff\xff\xff",
        b"TLB1\x00\x01\x00\x00\x00\x01\x00\x01a" + random.randbytes(30),
    ]
    return request(random, path=b"/v1/batch", headers=[HOST, BATCH], body=random.choice(bodies))


def _half(random: Random) -> bytes:
    """It ends before it is complete."""
    whole = request(random, body=b"{" + b" " * random.randrange(10, 500_000) + b"}")
    return whole[: random.randrange(1, len(whole) // 2)]


def _bytes(random: Random) -> bytes:
    starts = [
        b"",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\r\n\r\n\x00",
    ]
    return random.choice(starts) + random.randbytes(random.randrange(1, 5000))


DEFECTS: list[Callable[[Random], bytes]] = [
    _host,
    _page,
    _line,
    _method,
    _path,
    _query,
    _coding,
    _old_coding,
    _length,
    _chunk,
    _header,
    _large_head,
    _type,
    _json,
    _encoded,
    _batch,
    _half,
    _bytes,
]
