"""No decoder is forgotten: every function that reads bytes or text for what they mean is entered by some
target's examples."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from fuzz.target import examine
from fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("actors", "journal", "spark_bridge", "storage_backends")
NAMES = re.compile(
    r"_?(decode|parse|unpack|deserialize|load_config|read_identity|read_register)(_|$)|from_(bytes|json|wire|text|image)$"
)
CALLS = {
    "unpack",
    "unpack_from",
    "iter_unpack",
    "from_bytes",
    "fromhex",
    "loads",
    "fullmatch",
    "match",
    "isdigit",
    "isdecimal",
}
"""Methods that turn bytes or text into something else."""
BUILDERS = {"Decoder", "hex_number", "expect"}

EXEMPT = {
    "actors/gateway/server/app.py "
    "_NotFound.__call__": "matches a path that the server has split already; asked over HTTP in "
    "gateway_server",
    "actors/gateway/server/call.py "
    "HttpCall._checked_length": "part of a call; asked over HTTP in gateway_server/test_requests.py",
    "storage_backends/chunks/s3_errors.py "
    "at_opening": "reads the words of botocore's error; see tests/actors/command_line/test_s3.py",
    "actors/cli/segment_read.py _id_prefix": "hex digits of an argument; see "
    "tests/actors/command_line/test_segments.py",
    "actors/cli/user_tables.py _bytes": "a key of an argument; see "
    "tests/actors/command_line/test_user_tables.py",
    "actors/gateway/client/requests.py list_attributes.page": "as the attributes in an answer",
    "actors/cli/options.py _path_of.parse": "any text but an empty one is a path",
    "actors/gateway/server/listener.py _cannot_listen": "advice beside the system's error, after the address "
    "was refused",
    "actors/host/main.py _parse": "argparse, for arguments that the supervisor has written",
    "actors/gateway/server/write_handlers.py receive_batch.decode": "hands pieces of a body to the "
    "decoder of batches, which has a target",
    "actors/gateway/server/call.py HttpCall.container": "part of a request; asked over HTTP in "
    "supervisor_process/test_admin.py",
    "storage_backends/ledgers/connection.py SidecarConnection.outcome": "the result of a call, from its own "
    "sidecar",
    "storage_backends/ledgers/connection.py SidecarConnection._take_replies": "as above; what is no "
    "reply is in storage_backends/ledgers/test_fake_sidecar.py",
    "storage_backends/sorted_runs/merge_helper.py main": "the length of what its parent has just sent",
    "actors/supervisor/control/channel.py peer_pid": "three numbers from the kernel",
    "actors/settings/configuration_file.py load_config": "opens the file and hands its bytes "
    "to decode_config",
    "journal/coordination/zookeeper.py RecordObjects.put": "any text but digits is no version",
    "actors/folder/identity.py _has_logs": "asks whether any folder has a number for its name, and uses none",
    "actors/folder/restore_folder.py _remake_wal": "asks the same, and takes the name as it is",
    "actors/store/opening.py StoreOpener._disk": "reads the id of an opening that this process has just made",
    "actors/store/shared.py SharedOpener.runtime": "as above",
    "storage_backends/base/world.py World.id_bytes": "reads an id that this process has just made",
    "actors/maintenance/restore.py _Restore._make_folder": "as above",
    "actors/store/recover.py Recovery.write": "as above",
    "actors/store/recover.py Recovery._make_identity": "as above",
    "journal/operations/operation.py _Record.decode": "a protocol's signature, without a body",
    "actors/store/runtime.py ContainerRuntime._local_container.make": "as above",
    "spark_bridge/events.py decode_arrow": "needs the extra `spark`; takes boundaries that `boundaries` has "
    "found, see tests/spark_bridge/test_events.py",
    "journal/log/local.py "
    "LocalLog.check_owner": "the epoch only goes into an error's message; the record is compared as a whole",
}
"""Functions that look like decoders, and why no target is needed."""

Place = tuple[str, int]


@cache
def decoders() -> list[tuple[Place, str]]:
    """((file, line), name) of every function that looks like a decoder."""
    paths = [
        *sorted(ROOT.glob("*.py")),
        *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))),
    ]
    return [
        found
        for path in paths
        for found in decoders_in(path, ast.parse(path.read_text(encoding="utf-8")).body, "")
    ]


def decoders_in(path: Path, body: list[ast.stmt], prefix: str) -> Iterator[tuple[Place, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from decoders_in(path, node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if NAMES.match(node.name) or any(map(decodes, node.body)):
                line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                yield (str(path), line), f"{path.relative_to(ROOT).as_posix()} {prefix}{node.name}"
            yield from decoders_in(path, node.body, f"{prefix}{node.name}.")


def decodes(node: ast.AST) -> bool:
    """Whether it calls what turns bytes or text into something else, functions inside it left out."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return (isinstance(node, ast.Call) and is_decoding(node)) or any(map(decodes, ast.iter_child_nodes(node)))


def is_decoding(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in CALLS
    return isinstance(call.func, ast.Name) and (
        call.func.id in BUILDERS or (call.func.id == "int" and len(call.args) == 2)
    )


def entered() -> set[Place]:
    """Where the functions begin that the examples of all targets enter."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    before = sys.getprofile()
    for target in TARGETS.values():
        for data in target.examples:
            sys.setprofile(note)
            try:
                examine(target, data)
            finally:
                sys.setprofile(before)

    return {(str(Path(code.co_filename).resolve()), code.co_firstlineno) for code in seen}


def test_every_decoder_is_reached_by_a_target() -> None:
    reached = entered()
    missed = [name for place, name in decoders() if place not in reached and name not in EXEMPT]

    assert not missed, "no target reaches these (add one in tests/fuzz/*_targets.py):\n" + "\n".join(missed)


def test_no_exemption_has_outlived_its_function() -> None:
    reached = entered()
    unreached = {name for place, name in decoders() if place not in reached}

    assert set(EXEMPT) <= unreached


def test_a_function_that_decodes_is_seen_by_what_it_calls() -> None:
    """Whatever its name: a new record's reader need not be called `decode`."""
    source = """
def a(data):
    return S.unpack(data)
class B:
    def c(self, text):
        return int(text, 16)
def d(x):
    def e(text):
        return P.fullmatch(text)
    return int(x)
"""

    assert [name for _, name in decoders_in(ROOT / "x.py", ast.parse(source).body, "")] == [
        "x.py a",
        "x.py B.c",
        "x.py d.e",
    ]
