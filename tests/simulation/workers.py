"""Processes that run seeds: a seed that kills or hangs its process is a finding, not the end of the campaign.

Workers are spawned, never forked, so that they share nothing with a parent that may run loops and threads.
Each worker watches its own time: a seed that takes longer than its limit leaves the stack of every thread in
a file and ends the process, even without a parent. A worker that ended for any reason is replaced.

Ctrl-C reaches the parent alone; leaving the crew's context kills the workers, which own nothing that needs an
end. A worker whose parent vanished finds its pipe closed and ends.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import multiprocessing.connection
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from tierlog.actors.kernel.exits import first_leaf

from .verdict import Verdict

Runner = Callable[..., Verdict]
"""``run.run_seed``, or a function of a test; importable by its name, since another process calls it."""

BROKEN = "the simulator broke"
HUNG = "the run did not end"
DIED = "the run killed its process"
_END_SECONDS = 5.0
"""Between the end of a process's pipe and its own there is only the interpreter's exit."""


class WorkersCannotStart(Exception):
    """A worker ended before it took its first seed; its reason is on stderr."""


@attrs.frozen
class Job:
    """One run of one seed."""

    seed: int
    operations: int = 200
    keep: tuple[int, ...] | None = None
    full_trace: bool = False


def without_verdict(job: Job, violation: str) -> Verdict:
    """What is known of a run that came to no verdict of its own."""
    return Verdict(
        seed=job.seed,
        violation=violation,
        trace=(),
        digest="",
        steps=job.keep or (),
        operations=0,
        simulated_seconds=0.0,
        counts={},
    )


class WorkerPool:
    """Up to ``size`` workers; use it as a context."""

    def __init__(self, runner: Runner, size: int, seed_seconds_max: float) -> None:
        self._runner = runner
        self._size = size
        self._seconds = seed_seconds_max
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="tierlog-simulate-")
        self._started = 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._folder.cleanup()

    def run(self, jobs: Iterator[Job]) -> Iterator[Verdict]:
        """The verdicts, each as soon as it is known. one more of ``jobs`` is taken whenever a worker is
        free."""
        free = self._workers.copy()
        more = True
        while True:
            while more and (free or len(self._workers) < self._size):
                job = next(jobs, None)
                more = job is not None
                if job is not None:
                    (free.pop() if free else self._start()).give(job)
            busy = [worker for worker in self._workers if worker.job is not None]
            if not busy:
                return
            answered = multiprocessing.connection.wait([worker.pipe for worker in busy])
            for worker in busy:
                if worker.pipe in answered:
                    verdict = worker.take()
                    if worker.is_alive:
                        free.append(worker)
                    else:
                        self._workers.remove(worker)
                    yield verdict

    def run_one(self, job: Job) -> Verdict:
        (verdict,) = self.run(iter((job,)))
        return verdict

    def _start(self) -> _Worker:
        self._started += 1
        worker = _Worker(self._runner, self._seconds, Path(self._folder.name) / f"{self._started}.stack")
        self._workers.append(worker)
        return worker


class _Worker:
    def __init__(self, runner: Runner, seconds: float, stack_file: Path) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawning.Pipe()
        self.job: Job | None = None
        self.is_alive = True
        self._seconds = seconds
        self._stack_file = stack_file
        self._process = spawning.Process(
            target=_serve, args=(theirs, runner, seconds, str(stack_file)), daemon=True
        )
        with _interrupts_kept_back():
            self._process.start()
        theirs.close()

    def give(self, job: Job) -> None:
        self.job = job
        # That a process ended while it was idle is found when its answer is taken.
        with suppress(BrokenPipeError):
            self.pipe.send(job)

    def take(self) -> Verdict:
        """The answer that is there, or what is known about a process that ended without one."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            verdict: Verdict = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return without_verdict(job, self._tell_end())
        return verdict

    def _tell_end(self) -> str:
        self._process.join(_END_SECONDS)
        self.end()
        if not self._stack_file.exists():
            raise WorkersCannotStart(
                f"a worker process ended with exit code {self._process.exitcode} before its first seed"
            )
        stack = self._stack_file.read_text(encoding="utf-8", errors="replace").strip()
        if stack.startswith("Timeout"):
            return f"{HUNG} within {self._seconds:g} s of real time\n{stack}"
        return f"{DIED}, exit code {self._process.exitcode}\n{stack}".strip()

    def end(self) -> None:
        """A process that has ended by itself keeps its exit code."""
        self.is_alive = False
        self._process.kill()
        self._process.join()
        self.pipe.close()


@contextmanager
def _interrupts_kept_back() -> Iterator[None]:
    """A process that starts meanwhile never receives Ctrl-C, not even while it imports; this one receives it
    afterwards."""
    # It would be started with the first process, which lets the signal through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, runner: Runner, seconds: float, stack_file: str) -> None:
    """The worker process."""
    # Stores that meet faults report them; no one reads that here.
    logging.getLogger("tierlog").addHandler(logging.NullHandler())
    with (
        open(stack_file, "w", encoding="utf-8") as stacks,
        pipe,
        suppress(EOFError, BrokenPipeError, ConnectionResetError),
    ):
        faulthandler.enable(stacks)
        # A coroutine that nobody awaited is an error; raised where it is freed, it would only be printed.
        warnings.simplefilter("error", RuntimeWarning)
        unraisable: list[sys.UnraisableHookArgs] = []
        sys.unraisablehook = unraisable.append
        while True:
            job = pipe.recv()
            faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)
            verdict = _run(runner, job, unraisable)
            faulthandler.cancel_dump_traceback_later()
            pipe.send(verdict)


def _run(runner: Runner, job: Job, unraisable: list[sys.UnraisableHookArgs]) -> Verdict:
    unraisable.clear()
    try:
        verdict = runner(job.seed, operations=job.operations, keep=job.keep, full_trace=job.full_trace)
        if verdict.violation is None and unraisable and (error := unraisable[0].exc_value) is not None:
            raise error
    except BaseException as error:  # noqa: BLE001  # whatever comes out of a run is a finding, reported with its seed
        cause = first_leaf(error)
        said = f"{BROKEN}: {type(cause).__name__}: {cause}".splitlines()[0]
        return without_verdict(job, f"{said}\n{traceback.format_exc().strip()}")
    # Whatever kind of mapping a run counts in, a plain one can be sent.
    return attrs.evolve(verdict, counts=dict(verdict.counts))
