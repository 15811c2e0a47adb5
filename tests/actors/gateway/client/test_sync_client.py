"""The synchronous client among threads, signals, forks, collectors of garbage and event loops."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tierlog
from support.frame_relay import FrameRelay, Passing
from support.patience import scaled
from support.scripted_server import Answer, Fault, Received, json_answer, script_of, scripted
from support.service import service
from tierlog import ClosedError, OutcomeUnknown, SyncClient
from tierlog.actors.gateway.wire.session import Kind

INTERRUPTED = -signal.SIGINT


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with service(tmp_path_factory.mktemp("store")) as found, tierlog.connect_sync(found) as client:
        client.create_segment("s")
        yield found


@pytest.fixture
def relay(url: str) -> Iterator[FrameRelay]:
    with FrameRelay(url).running() as found:
        yield found


def wait_until(is_so: Callable[[], object]) -> None:
    give_up = time.monotonic() + scaled(30)
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.002)


@contextmanager
def in_thread(act: Callable[[], object]) -> Iterator[list[BaseException]]:
    """``act`` in a thread, which has ended at the end of the body; what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - for the test
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield raised
    thread.join(scaled(30))
    assert not thread.is_alive()


# --- threads ----------------------------------------------------------------------------------------


def test_threads_share_batches_and_one_session(relay: FrameRelay) -> None:
    offsets: list[int] = []

    def append(client: SyncClient) -> None:
        offsets.extend([client.append("shared", b"x") for _ in range(30)])

    with tierlog.connect_sync(relay.url) as client:
        client.create_segment("shared")
        threads = [threading.Thread(target=append, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = client.statistics()

    assert sorted(offsets) == list(range(240))
    assert found.batches < found.appends == 240
    assert (relay.sessions, relay.connections) == (1, 1)


def test_without_sessions_it_uses_plain_http(relay: FrameRelay) -> None:
    with tierlog.connect_sync(relay.url, sessions=False) as client:
        client.create_segment("plain")
        assert client.append("plain", b"x") == 0

    assert relay.sessions == 0
    assert relay.connections > 0


def test_a_callers_iterable_may_use_the_client(url: str) -> None:
    with tierlog.connect_sync(url) as client:
        for name in ("from", "to"):
            client.create_segment(name)
        client.append_many("from", [b"a", b"b"])
        client.seal_segment("from")
        client.append_many("to", client.tail("from", block_size=1))

        assert client.read("to", 0, 10) == b"ab"


@pytest.mark.anyio
async def test_it_works_inside_a_running_event_loop(url: str) -> None:
    """As in a notebook. The loop stands still meanwhile."""
    with tierlog.connect_sync(url) as client:
        end = client.append("s", b"abc") + 3
        assert next(client.tail("s", end - 3)) == b"abc"


# --- the end ----------------------------------------------------------------------------------------


def test_a_client_without_a_body_is_usable_until_its_close(url: str) -> None:
    """As in the cells of a notebook."""
    client = tierlog.connect_sync(url).open()
    client.create_segment("cells")
    client.append("cells", b"abc")
    blocks = client.tail("cells")
    assert next(blocks) == b"abc"
    client.close()
    with pytest.raises(ClosedError, match="is closed"):
        next(blocks)
    with pytest.raises(ClosedError, match="its body has ended, or `close` or `aclose` was called"):
        client.read("cells", 0, 3)


def test_a_close_ends_the_calls_of_other_threads(url: str) -> None:
    with tierlog.connect_sync(url) as client:
        end = client.segment_info("s").length
        with (
            in_thread(lambda: client.poll("s", end, 60.0)) as polled,
            in_thread(lambda: next(client.tail("s", end))) as tailed,
        ):
            wait_until(lambda: client.statistics().in_flight == 2)
            client.close()
        client.close()
        with pytest.raises(ClosedError):
            client.health()

    assert [type(error) for error in (*polled, *tailed)] == [ClosedError, ClosedError]


def test_the_end_of_the_body_waits_for_the_appends_of_other_threads() -> None:
    may_answer = threading.Event()

    def late(received: Received) -> Answer:
        may_answer.wait(scaled(30))
        return json_answer({"results": [7]})

    offsets: list[int] = []
    with scripted(late) as server:
        with tierlog.connect_sync(server.url) as client:
            append = threading.Thread(target=lambda: offsets.append(client.append("s", b"x")))
            append.start()
            wait_until(lambda: server.received)

            def answer_once_it_closes() -> None:
                wait_until(lambda: "closed" in repr(client))
                may_answer.set()

            answer = threading.Thread(target=answer_once_it_closes)
            answer.start()
        append.join()
        answer.join()

    assert offsets == [7]


def test_a_body_that_fails_waits_for_nothing() -> None:
    with scripted(script_of(Fault.SILENCE)) as server:
        with pytest.raises(ZeroDivisionError), tierlog.connect_sync(server.url) as client:
            thread = in_thread(lambda: client.append("s", b"x"))
            raised = thread.__enter__()
            wait_until(lambda: server.received)
            raise ZeroDivisionError
        thread.__exit__(None, None, None)
        server.release()

    assert [type(error) for error in raised] == [OutcomeUnknown]


# --- tails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_in_cycle", [False, True])
def test_a_tail_that_is_dropped_ends_at_the_server(relay: FrameRelay, is_in_cycle: bool) -> None:
    streams, cancelled = threading.Event(), threading.Event()

    def watch(passing: Passing) -> list[bytes]:
        if b"stream=true" in passing.data:
            streams.set()
        if passing.from_client and passing.kind == Kind.CANCEL:
            cancelled.set()
        return [passing.data]

    relay.fault = watch
    with tierlog.connect_sync(relay.url) as client:
        held = [client.tail("s", client.segment_info("s").length)]
        with in_thread(lambda: next(held[0])):
            assert streams.wait(scaled(30))
            client.append("s", b"x")
        if is_in_cycle:
            held.append(held)  # type: ignore[arg-type]
            del held
            gc.collect()
        else:
            held.clear()
        assert cancelled.wait(scaled(30))
        client.append("s", b"y")

    assert relay.sessions == 1


# --- processes --------------------------------------------------------------------------------------


def program(url: str, source: str) -> subprocess.Popen[str]:
    """Runs as a process of its own, in which warnings are errors."""
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", PRELUDE + source, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    )


PRELUDE = """
import gc, os, signal, socket, sys, threading
import tierlog
url = sys.argv[1]
"""


def finished(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code, output and errors."""
    try:
        out, err = running.communicate(timeout=scaled(20))
    finally:
        running.kill()
    return running.returncode, out, err


EXITS = {
    "in the body": """
context = tierlog.connect_sync(url)
client = context.__enter__()
client.append("s", b"x")
""",
    "with a tail": """
client = tierlog.connect_sync(url).__enter__()
offset = client.append("s", b"x")
blocks = client.tail("s", offset)
assert next(blocks)
""",
    "with a call": """
client = tierlog.connect_sync(url).__enter__()
end = client.segment_info("s").length
threading.Thread(target=lambda: client.poll("s", end, 60.0), daemon=True).start()
while not client.statistics().in_flight:
    pass
""",
    "in an atexit function": """
import atexit
context = tierlog.connect_sync(url)
client = context.__enter__()
atexit.register(context.__exit__, None, None, None)
atexit.register(client.append, "s", b"x")
""",
    "in a finalizer": """
from tierlog import ClosedError
class Journal:
    def __init__(self):
        self.client = tierlog.connect_sync(url).__enter__()
    def __del__(self):
        try:
            self.client.append("s", b"x")
        except ClosedError:
            self.client.close()
journal = Journal()
""",
    "in a generator": """
def offsets():
    with tierlog.connect_sync(url) as client:
        while True:
            yield client.append("s", b"x")
found = offsets()
next(found)
""",
}


@pytest.mark.parametrize("how", EXITS)
def test_a_process_may_end_without_a_close(url: str, how: str) -> None:
    assert finished(program(url, EXITS[how])) == (0, "", "")


LATE = """
from concurrent.futures import ThreadPoolExecutor
executor = ThreadPoolExecutor(1)
def late():
    threading.main_thread().join()
    try:
        while True:
            executor.submit(int).result()
    except RuntimeError:  # no executor takes anything any more
        pass
    with tierlog.connect_sync(url.replace("127.0.0.1", "localhost")) as client:
        client.append("s", b"x")
threading.Thread(target=late).start()
"""


def test_a_thread_that_outlives_the_main_thread_may_open_one_by_a_hosts_name(url: str) -> None:
    assert finished(program(url, LATE)) == (0, "", "")


FORK = """
import warnings
warnings.simplefilter("ignore")  # Python's own, of a fork among threads
with tierlog.connect_sync(url) as client:
    offset = client.append("s", b"ab")
    blocks = client.tail("s", offset, block_size=1)
    assert next(blocks) == b"a"
    other = tierlog.connect_sync(url).__enter__()
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert next(blocks) == b"b"
        assert client.append("s", b"c") == offset + 2
        assert other.append("s", b"d") == offset + 3
        sys.exit(0)

    # Whatever the child does, it must not write into what it shares with its parent.
    def refused(*args):
        print("written", file=sys.stderr)
        os._exit(9)

    for verb in ("send", "sendall", "sendmsg", "shutdown"):
        setattr(socket.socket, verb, refused)
    for call in (lambda: client.append("s", b"x"), lambda: next(blocks), client.health, client.flush):
        try:
            call()
        except tierlog.ClosedError as error:
            assert "parent of this forked process" in str(error)
        else:
            os._exit(8)
    client.close()
    del blocks, other
    gc.collect()
raise SystemExit(5)
"""


def test_the_child_of_a_fork_leaves_the_parents_client_alone(relay: FrameRelay) -> None:
    """Also at its own end."""
    code, out, err = finished(program(relay.url, FORK))

    assert (code, out, err) == (0, "", "")
    assert relay.sessions == 2, "the sessions of the parent are broken"


WAITS = {
    "poll": 'client.poll("s", client.segment_info("s").length, 60.0)',
    "tail": 'next(client.tail("s", client.segment_info("s").length))',
    "threads": """
end = client.segment_info("s").length
threads = [threading.Thread(target=lambda: client.poll("s", end, 60.0), daemon=True) for _ in range(3)]
for thread in threads: thread.start()
client.poll("s", end, 60.0)
""",
}


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_a_program_that_waits(url: str, what: str) -> None:
    waits = WAITS[what].strip().replace("\n", "\n    ")
    source = f"""
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.excepthook = lambda args: None
with tierlog.connect_sync(url) as client:
    def tell():
        while not client.statistics().in_flight:
            pass
        print("waits", flush=True)
    threading.Thread(target=tell, daemon=True).start()
    {waits}
"""
    running = program(url, source)
    assert running.stdout is not None
    assert running.stdout.readline() == "waits\n"
    running.send_signal(signal.SIGINT)
    code, _, err = finished(running)

    assert code == INTERRUPTED
    assert err.rstrip().endswith("KeyboardInterrupt")
