"""The parsers of what people and programs ask for: names, arguments, configuration files, the command line,
control messages."""

from __future__ import annotations

from collections.abc import Callable

import typer
from simulation import command as simulate

from fuzz.target import Target
from tierlog.actors.cli import output
from tierlog.actors.cli import segment_write as changing
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.settings.configuration_file import decode_config, render_config
from tierlog.actors.settings.units import UnitError, duration, share, size
from tierlog.actors.supervisor.control import messages
from tierlog.storage_backends.base.arguments import check_offset, check_size, writer_bytes
from tierlog.storage_backends.base.chunk_storage import check_chunk_name
from tierlog.storage_backends.base.errors import ConfigError, InvalidArgument
from tierlog.storage_backends.base.names import check_segment_name, container_of
from tierlog.storage_backends.base.segments import AttributeUpdate
from tierlog.storage_backends.base.transactions import is_staged, split_staged, staged_name

_CONTAINERS = 7
_HUGE = b"9" * 5000


def _text(data: bytes) -> str:
    """As the command line gives it: what is not UTF-8 comes as lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _written(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _number_target(name: str, check: Callable[[int], int]) -> Target:
    return Target(
        name,
        lambda data: check(_number(data)),
        [b"\1\0"],
        (InvalidArgument,),
        _written,
        canonical=False,
        hostile=[_HUGE],
    )


# --- names and arguments ------------------------------------------------------------------------


def _place(data: bytes) -> tuple[str, int]:
    name = _text(data)
    check_segment_name(name)
    container = container_of(name, _CONTAINERS)
    assert 0 <= container < _CONTAINERS
    assert container == container_of(f"{name}#part", _CONTAINERS) or name.startswith("#")
    return name, container


def _staged(data: bytes) -> tuple[str, str, str]:
    """The name of a staged segment alone shows its transaction (rule T1)."""
    target, _, rest = _text(data).partition("|")
    transaction, _, part = rest.partition("|")
    name = staged_name(target, transaction, part)
    check_segment_name(name)
    assert is_staged(name)
    assert split_staged(name) == (target, transaction)
    return target, transaction, part


def _check_chunk_name(data: bytes) -> str:
    name = _text(data)
    check_chunk_name(name)
    assert not name.startswith(("/", "."))
    assert "/." not in name
    return name


def _attribute(data: bytes) -> AttributeUpdate:
    name, _, value = data.partition(b"=")
    return AttributeUpdate(_text(name), _number(value))


_ARGUMENTS = [
    Target(
        "segment name",
        _place,
        [b"app/events#part-1", "größe/ä".encode(), b"#a"],
        errors=(InvalidArgument,),
        encode=lambda found: found[0].encode(),
        hostile=[b"\xed\xa0\x80", b"a" * 5000, b"a/../b", b"a\n", b"_system/x"],
    ),
    Target(
        "staged segment's name",
        _staged,
        [b"app/events|query-7.1|part-0", "größe|j:8|p".encode()],
        errors=(InvalidArgument,),
        encode=lambda found: "|".join(found).encode(),
        hostile=[b"a|b|c.d", b"a#txn.b.c|d|e", b"a|b\n|c", b"a|" + b"b" * 5000 + b"|c"],
    ),
    Target(
        "chunk name",
        _check_chunk_name,
        [b"containers/0001/0000000700000002/0000000000000007-0000000000000000-id"],
        errors=(InvalidArgument,),
        encode=str.encode,
        hostile=[b"a\n", b"../a", b"/a", b"a//b", b"a/.tmp-1"],
    ),
    _number_target("offset", check_offset),
    _number_target("size", check_size),
    Target(
        "writer id",
        lambda data: writer_bytes(data.decode("utf-8", "surrogatepass")),
        ["schreiber-ä".encode()],
        (InvalidArgument, UnicodeDecodeError),
        encode=lambda writer: writer,
    ),
    Target(
        "attribute",
        _attribute,
        ["größe=\1\0".encode(), b"txn=\xff"],
        errors=(InvalidArgument,),
        encode=lambda update: update.name.encode() + b"=" + _written(update.value),
        canonical=False,  # numbers have leading zeros
        hostile=[b"a=" + _HUGE, b"\xff=1"],
    ),
]

# --- configuration -------------------------------------------------------------------------------

_SIZE = size(1 << 20, 0, 1 << 60, "A size.")
_DURATION = duration(1.0, 0.0, 86_400.0, "A duration.")
_SHARE = share(0.5, 0.0, 1.0, "A share.")


def _size(data: bytes) -> float:
    return float(_SIZE.read(_text(data)))


def _duration(data: bytes) -> float:
    return float(_DURATION.read(_text(data)))


def _share(data: bytes) -> float:
    value = float(_SHARE.read(_text(data)))
    assert 0 <= value <= 1
    return value


_CONFIGURATION = [
    Target(
        "configuration file",
        decode_config,
        [b'containers = 8\n[writer]\nflush_age = "500 ms"\nflush_bytes = 0x10_000\n[cache]\nsoft = "50 %"\n'],
        errors=(ConfigError,),
        encode=lambda config: render_config(config).encode(),
        canonical=False,  # comments, order, defaults
        hostile=[
            render_config(StoreConfig()).encode(),
            b"a = " + b"[" * 5000,
            b"a = " + b"{b=" * 5000,
            b"containers = " + _HUGE,
            b"containers = 0x" + b"f" * 5000,
            b"containers = [0x" + b"f" * 5000 + b"]",
            b"[writer]\nflush_age = 1" + b"0" * 400,
            b"[writer]\nflush_age = 1e999",
            b"[writer]\nflush_age = nan",
            b"containers = true",
            b"writer = 1",
            b"[containers]",
            b"containers = 1979-05-27T07:32:00Z",
            b"\xff",
            b"." * 5000,
        ],
        bytes_per_byte=16_384,  # hundreds of settings have defaults
    ),
    Target(
        "size with unit",
        _size,
        [b"64 MiB", b"1.5KiB"],
        (UnitError,),
        lambda n: f"{int(n)} B".encode(),
        canonical=False,
        hostile=[_HUGE, b"602066 TiB"],
    ),
    Target(
        "duration",
        _duration,
        [b"500 ms", b"1.5 h"],
        (UnitError,),
        lambda n: _DURATION.show(n).encode(),
        canonical=False,
        hostile=[_HUGE],
    ),
    Target("share", _share, [b"60 %", b"0.5%"], (UnitError,), hostile=[_HUGE + b"%"]),
]

# --- the command line ----------------------------------------------------------------------------

_COMMAND_LINE = [
    Target(
        "--rolling-size",
        lambda data: changing._parse_size(_text(data)),
        [b"67108864", b"64 MiB"],
        errors=(typer.BadParameter,),
        encode=lambda number: str(number).encode(),
        canonical=False,
        hostile=[_HUGE, "٦٧١٠٨٨٦٤".encode(), b"-1", b""],
    ),
    Target(
        "--seeds",
        lambda data: simulate._range(_text(data)),
        [b"1000:50"],
        errors=(typer.BadParameter,),
        encode=lambda found: f"{found[0]}:{found[1]}".encode(),
        canonical=False,
        hostile=[_HUGE + b":1", b"1:" + _HUGE, b"1:0", "²:1".encode()],
    ),
    Target(
        "--keep",
        lambda data: simulate._steps(_text(data)),
        [b"3,7,20-31"],
        errors=(typer.BadParameter,),
        encode=lambda steps: ",".join(map(str, steps)).encode(),
        canonical=False,
        hostile=[_HUGE, b"0-" + _HUGE, b"0-99999999999"],
        bytes_per_byte=1 << 22,  # a range of up to a million steps
    ),
    Target(
        "time for people",
        lambda data: output.show_time(int.from_bytes(data, "big")),
        [b"\1\0\0\0\0\0"],
        (),
        hostile=[b"\xff" * 8],
    ),
]

# --- between supervisor and hosts ----------------------------------------------------------------


def _message(data: bytes) -> messages.Message:
    message = messages.decode(data)
    # By their text: a number that is none equals nothing, itself included.
    assert repr(messages.decode(messages.encode(message))) == repr(message)
    return message


def _lines(data: bytes) -> list[messages.Message]:
    found = messages.Lines().feed(data)
    parts = messages.Lines()
    assert repr([*parts.feed(data[: len(data) // 3]), *parts.feed(data[len(data) // 3 :])]) == repr(found)
    return found


_MESSAGES: list[messages.Message] = [
    messages.Hello("h1", 4711, "http://127.0.0.1:1", {0: 3, 2: 5}, 7),
    messages.Heartbeat(3, 0.25, {"appends": 5}),
    messages.Opened(1, 2, 3),
    messages.Failed(1, 2, "corrupt", "größe"),
    messages.Welcome(7, 0.5, 10.0),
    messages.Drain(7),
    messages.Owners({0: "http://127.0.0.1:1"}),
]
_CONTROL = [
    Target(
        "control message",
        _message,
        [messages.encode(message) for message in _MESSAGES],
        errors=(messages.ProtocolError,),
        hostile=[
            b"[" * 5000,
            b'{"type": []}',
            b'{"type": "heartbeat", "sequence": Infinity, "lag": NaN}',
            b'{"type": "drain", "term": ' + _HUGE + b"}",
            b'{"type": "drain", "term": 1' + b"0" * 400 + b"}",
            b'{"type": "heartbeat", "sequence": 1, "lag": 1' + b"0" * 400 + b"}",
            b'{"type": "heartbeat", "sequence": 1, "lag": 1, "statistics": [["a", 1]]}',
            b'{"type": "refuse", "reason": "\\ud800"}',
            b"null",
        ],
        bytes_per_byte=16_384,  # a converter is made at its first use
    ),
    Target(
        "control lines",
        _lines,
        [b"".join(map(messages.encode, _MESSAGES)), messages.encode(_MESSAGES[0])[:-1]],
        errors=(messages.ProtocolError,),
        hostile=[b"\n\n", b"x" * (messages.LINE_BYTES_MAX + 1)],
        bytes_per_byte=16_384,
    ),
]

REQUEST_TARGETS = [*_ARGUMENTS, *_CONFIGURATION, *_COMMAND_LINE, *_CONTROL]
