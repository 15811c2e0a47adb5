"""A model of transactions in plain values: random verbs, deletions, checkpoints, flushes and takeovers must
agree with it (rules T1 to T9).

The model knows one target and what each transaction has staged; a verb's answer or refusal is compared, and
after every step so is all that can be seen: the target's bytes, its attributes, the staged segments, the
state of each transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

import tierlog
from support.container_world import ContainerWorld, read_all, recorded_segments
from support.transactions import TARGET
from tierlog import CommitResult, SegmentStore, StagedPart, TierlogError, TransactionInfo, TransactionToken
from tierlog.storage_backends.base.transactions import staged_name

IDS = ("t", "u")


class Refused(Exception):
    """The class of the error that the store must raise."""


@attrs.define
class Known:
    """What the model knows of one transaction."""

    state: str = "open"
    token: TransactionToken | None = None
    staged: dict[str, bytes] = attrs.field(factory=dict)
    offset: int = 0
    length: int = 0


@attrs.define
class Model:
    target: bytes | None = None
    """None: it was deleted, or never made."""
    sealed: bool = False
    attributes: dict[str, int] = attrs.field(factory=dict)
    known: dict[str, Known] = attrs.field(factory=dict)
    earlier: dict[str, Known] = attrs.field(factory=dict)
    """Transactions of deleted segments of the name: hidden while there is a segment, then known again."""

    def create(self) -> None:
        self._need(self.target is None, tierlog.SegmentExists)
        self.earlier, self.known = self.known, {}
        self.target, self.sealed, self.attributes = b"", False, {}

    def delete(self) -> None:
        self._need(self.target is not None, tierlog.SegmentNotFound)
        self.target = None
        for known in self.known.values():
            if known.state == "open":
                known.state, known.staged = "aborted", {}
        self.known = {**self.earlier, **self.known}

    def seal(self) -> int:
        self._need(self.target is not None, tierlog.SegmentNotFound)
        self.sealed = True
        return len(self.target or b"")

    def begin(self, transaction: str, token: TransactionToken | None) -> str:
        known = self.known.get(transaction)
        self._same_token(known, token)
        token = token or self._token(known)
        if self._reached(token):
            return "committed"

        if known is None:
            self._need(self.target is not None, tierlog.SegmentNotFound)
            self.known[transaction] = Known(token=token)
        else:
            self._need(known.state == "open", tierlog.TransactionEnded)
        return "open"

    def stage(self, transaction: str, part: str) -> str:
        self._open(transaction).staged.setdefault(part, b"")
        return staged_name(TARGET, transaction, part)

    def append(self, transaction: str, part: str, data: bytes) -> int:
        staged = self._open(transaction).staged
        self._need(part in staged, tierlog.SegmentNotFound)
        staged[part] += data
        return len(staged[part]) - len(data)

    def commit(
        self, transaction: str, parts: list[tuple[str, int]], token: TransactionToken | None
    ) -> CommitResult:
        known = self.known.get(transaction)
        self._same_token(known, token)
        if known is not None and known.state == "committed":
            return CommitResult(False, known.offset, known.length)

        token = token or self._token(known)
        if self._reached(token):
            if known is not None and known.state == "open":
                known.state, known.staged = "aborted", {}
            return CommitResult(False, None, 0)

        self._need(known is not None or self.target is not None, tierlog.SegmentNotFound)
        known = self._open(transaction)
        self._need(not self.sealed, tierlog.SegmentSealed)
        for part, length in parts:
            self._need(part in known.staged, tierlog.SegmentNotFound)
            self._need(len(known.staged[part]) == length, tierlog.BadOffset)
        assert self.target is not None
        known.offset, known.token = len(self.target), token
        self.target += b"".join(known.staged[part] for part, _ in parts)
        known.state, known.staged, known.length = "committed", {}, len(self.target) - known.offset
        if token is not None:
            self.attributes[token.attribute] = token.epoch
        return CommitResult(True, known.offset, known.length)

    def abort(self, transaction: str) -> str:
        self._need(transaction in self.known or self.target is not None, tierlog.SegmentNotFound)
        known = self.known.setdefault(transaction, Known("aborted"))
        if known.state == "open":
            known.state, known.staged = "aborted", {}
        return known.state

    def _open(self, transaction: str) -> Known:
        self._need(transaction in self.known, tierlog.TransactionNotFound)
        self._need(self.known[transaction].state == "open", tierlog.TransactionEnded)
        return self.known[transaction]

    @staticmethod
    def _token(known: Known | None) -> TransactionToken | None:
        return None if known is None else known.token

    def _reached(self, token: TransactionToken | None) -> bool:
        return (
            self.target is not None
            and token is not None
            and self.attributes.get(token.attribute, -1) >= token.epoch
        )

    def _same_token(self, known: Known | None, token: TransactionToken | None) -> None:
        self._need(
            known is None or None in (known.token, token) or known.token == token, tierlog.InvalidArgument
        )

    @staticmethod
    def _need(holds: bool, error: type[TierlogError]) -> None:
        if not holds:
            raise Refused(error)

    def shown(self) -> object:
        states = {name: (known.state, known.offset, known.length) for name, known in self.known.items()}
        staged = {
            staged_name(TARGET, name, part): data
            for name, known in self.known.items()
            for part, data in known.staged.items()
        }
        return self.target, self.attributes if self.target is not None else {}, staged, states


async def seen(store: SegmentStore) -> object:
    """What the store shows of all that a model knows."""
    target, attributes = None, {}
    if await store.list_segments():
        target, attributes = (
            await read_all(store, TARGET),
            dict((await store.segment_info(TARGET)).attributes),
        )
    staged = {name: await read_all(store, name) for name in await store.list_segments(f"{TARGET}#txn.")}
    infos = await store.list_transactions()
    states = {
        info.transaction_id: (
            info.state.value,
            info.offset or 0,
            info.length if info.state.value == "committed" else 0,
        )
        for info in infos
    }
    return target, attributes, staged, states


ids = st.sampled_from(IDS)
parts = st.sampled_from(("p", "q"))
tokens = st.none() | st.builds(TransactionToken, st.just("w"), st.integers(1, 2))
prepared = st.tuples(st.just("prepare"), ids, parts, tokens)
"""What most scripts need: a begin, a stage and an append of one transaction."""
steps = st.one_of(
    prepared,
    st.tuples(st.just("commit"), ids, st.lists(parts, unique=True, max_size=2), st.booleans(), st.none()),
    st.tuples(st.just("begin"), ids, tokens),
    st.tuples(st.just("stage"), ids, parts),
    st.tuples(st.just("append"), ids, parts, st.sampled_from((b"", b"ab", b"abc"))),
    st.tuples(st.just("append"), ids, parts, st.sampled_from((b"x" * 70_000,))),
    st.tuples(st.just("commit"), ids, st.lists(parts, unique=True, max_size=2), st.booleans(), tokens),
    st.tuples(st.just("abort"), ids),
    st.tuples(st.sampled_from(("delete", "seal", "flush"))),
    st.tuples(st.sampled_from(("create", "checkpoint and crash", "crash", "stop"))),
)


def called(model: Model, step: tuple[Any, ...]) -> tuple[Any, Any]:
    """(what the model says, the same call to a store) for one step; the model is asked when its half is
    called."""
    verb, *arguments = step
    if verb == "begin":
        transaction, token = arguments
        return lambda: model.begin(transaction, token), lambda store: store.begin_transaction(
            TARGET, transaction, token
        )
    if verb == "stage":
        return lambda: model.stage(*arguments), lambda store: store.stage_segment(TARGET, *arguments)
    if verb == "append":
        transaction, part, data = arguments
        return lambda: model.append(*arguments), lambda store: store.append(
            staged_name(TARGET, transaction, part), data
        )
    if verb == "commit":
        transaction, chosen, right, token = arguments
        known = model.known.get(transaction, Known())
        described = [(part, len(known.staged.get(part, b"")) + (not right)) for part in chosen]
        named = [StagedPart(staged_name(TARGET, transaction, part), length) for part, length in described]
        return (
            lambda: model.commit(transaction, described, token),
            lambda store: store.commit_transaction(TARGET, transaction, named, token),
        )
    if verb == "abort":
        return lambda: model.abort(*arguments), lambda store: store.abort_transaction(TARGET, *arguments)
    return getattr(model, verb), lambda store: getattr(store, f"{verb}_segment")(TARGET)


async def compare(model: Model, store: SegmentStore, step: tuple[Any, ...]) -> None:
    expect, call = called(model, step)
    try:
        expected = expect()
    except Refused as refused:
        with pytest.raises(refused.args[0]):
            await call(store)
        return

    answer = await call(store)
    assert (answer.state.value if isinstance(answer, TransactionInfo) else answer) == expected


def played(script: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The script with its composed steps taken apart."""
    for step in script:
        if step[0] == "prepare":
            _, transaction, part, token = step
            yield from (
                ("begin", transaction, token),
                ("stage", transaction, part),
                ("append", transaction, part, b"prepared"),
            )
        elif step[0] == "checkpoint and crash":
            yield from (("checkpoint",), ("crash",))
        else:
            yield step


async def play(script: list[tuple[Any, ...]]) -> None:
    world, model = ContainerWorld(), Model()
    async with anyio.create_task_group() as tasks:
        owner = await world.start(tasks)
        for step in played([("create",), *script]):
            if step[0] in ("crash", "stop"):
                await getattr(owner, step[0])()
                owner = await world.start(tasks)
            elif step[0] == "checkpoint":
                await owner.checkpoint()
            elif step[0] == "flush":
                await owner.store.flush()
            else:
                await compare(model, owner.store, step)
            assert await seen(owner.store) == model.shown()

        for transaction in IDS if model.target is not None else ():
            await compare(model, owner.store, ("abort", transaction))
        await owner.store.flush()
        live = set() if model.target is None else {(await owner.store.segment_info(TARGET)).segment_id}
        assert recorded_segments(owner.container) == set(owner.container.state.segments.by_id) == live
        await owner.stop()


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_a_store_does_with_transactions_what_the_model_does(script: list[tuple[Any, ...]]) -> None:
    trio.run(play, script, clock=MockClock(autojump_threshold=0))
