"""Segments of the legacy layout in simulations: what lies there, what the model makes of it, and that broken
imports are found."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from simulation.legacy import LegacyFiles, draw
from simulation.legacy_invariants import LegacyFilesLeft
from simulation.model import NotAnswered, State, refusal
from simulation.model_calls import Append, Create, Delete, ImplicitImport, Import, ListNames, Op, Read
from simulation.plan import Verb
from simulation.planner import make_plan
from simulation.run import run_seed

from support.container_world import ContainerWorld
from tierlog.actors.container.sources import ReleasedRecords
from tierlog.actors.legacy_rolling import export, header_updates
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.storage_backends.base.errors import InvalidArgument, SegmentExists, SegmentNotFound, TierlogError

FAMILIES = (("f", "f#1", "f#2"), ("g", "g#1", "g#2"))
SEEDS = range(600)
LAYOUTS = {LayoutMode.INSTALL_NEW, LayoutMode.CODE_ONLY_UPGRADE, LayoutMode.LAYOUT_UPGRADE}
WITH_LEGACY = [seed for seed in SEEDS if make_plan(seed, 1).legacy]
NOT_FOUND = refusal(SegmentNotFound, segment="f")


def all_drawn() -> list[LegacyFiles]:
    return [segment for seed in range(300) for segment in draw(Random(seed), FAMILIES)]


# --- what a seed has ----------------------------------------------------------------------------


def test_about_every_sixth_seed_has_one_to_three_segments_of_the_legacy_layout() -> None:
    assert len(SEEDS) / 8 < len(WITH_LEGACY) < len(SEEDS) / 4
    plans = [make_plan(seed) for seed in WITH_LEGACY[:40]]
    assert {len(plan.legacy) for plan in plans} == {1, 2, 3}
    assert {plan.site.layout for plan in plans} == LAYOUTS
    assert any(action.verb is Verb.IMPORT for plan in plans for action in plan.actions)


def test_a_seed_without_them_has_a_plain_store_and_imports_nothing() -> None:
    for plan in (make_plan(seed) for seed in SEEDS[:30] if seed not in WITH_LEGACY):
        assert plan.site.layout is LayoutMode.INSTALL_NEW
        assert all(action.verb is not Verb.IMPORT for action in plan.actions)


def test_the_files_differ_in_all_that_the_layout_allows() -> None:
    drawn = all_drawn()
    for found in (
        lambda segment: not segment.parts,
        lambda segment: not segment.has_header and segment.parts,
        lambda segment: segment.sealed,
        lambda segment: segment.lost,
        lambda segment: segment.joined,
        lambda segment: segment.spare and len(segment.parts) > 1,
    ):
        assert any(map(found, drawn))
    assert not any(
        file.startswith(("containers/", "_system/")) for segment in drawn for file in segment.files
    )


@pytest.mark.anyio
async def test_a_store_imports_the_files_as_the_model_says() -> None:
    for segment in [segment for segment in all_drawn() if segment.name == "f"][:40]:
        world = ContainerWorld()
        await world.chunks.open()
        for file, data in segment.files.items():
            await world.chunks.create_with_content(file, [data])
            if file == segment.read_only:
                await world.chunks.set_read_only(file, True)
        state = State(legacy=(("f", segment.imported),))
        async with world.owner() as owner:
            for op in (
                Read("f", segment.lost, 10_000),
                Import("f"),
                Import("f"),
                Read("f", segment.lost, 10_000),
                Delete("f"),
                Import("f"),
            ):
                state, outcome = op.apply(state)
                try:
                    answer: object = await op.send(owner.store)
                except TierlogError as error:
                    answer = error
                assert outcome.accepts(answer), f"{segment}: {op} returned {answer!r}, not {outcome}"


# --- the model ----------------------------------------------------------------------------------


def after(state: State, *ops: Op) -> State:
    for op in ops:
        state, _ = op.apply(state)
    return state


def test_on_demand_there_is_no_segment_before_its_import_and_none_comes_twice() -> None:
    state = State(legacy=(("f", LegacyFiles("f", (b"abc",)).imported),))
    assert Read("f", 0, 9).apply(state)[1] == NOT_FOUND
    assert Import("f#1").apply(state)[1] == refusal(SegmentNotFound, segment="f#1")

    state, outcome = Import("f").apply(state)
    assert outcome.accepts(3)
    assert Import("f").apply(state)[1] == refusal(SegmentExists, segment="f")
    assert Import("f").apply(after(state, Delete("f")))[1] == refusal(InvalidArgument)


def test_a_segment_that_was_created_first_keeps_the_name_until_it_is_deleted() -> None:
    state = after(State(legacy=(("f", LegacyFiles("f", (b"abc",)).imported),)), Create("f"))
    assert Import("f").apply(state)[1] == refusal(SegmentExists, segment="f")

    segment = after(state, Delete("f"), Import("f")).find("f")
    assert segment is not None
    assert (segment.data, segment.number) == (b"abc", 1)


@pytest.mark.parametrize("op", [Read("f", 0, 9), Append("f", (b"x",)), Create("f"), Delete("f")])
def test_at_first_access_no_answer_is_possible_before_the_import(op: Op) -> None:
    state = State(legacy=(("f", LegacyFiles("f", (b"abc",)).imported),), imports_on_access=True)
    assert op.imports == ("f",)
    assert op.apply(state) == (state, NotAnswered())
    assert not NotAnswered().accepts(None)
    assert op.apply(after(state, ImplicitImport("f")))[1] != NotAnswered()


def test_a_list_imports_nothing_and_shows_what_was_imported() -> None:
    state = State(legacy=(("f", LegacyFiles("f", (b"abc",)).imported),), imports_on_access=True)
    assert ListNames("f").imports == ()
    assert ListNames("f").apply(state)[1].accepts([])
    assert ListNames("f").apply(after(state, ImplicitImport("f")))[1].accepts(["f"])


# --- whole runs ---------------------------------------------------------------------------------


def test_seeds_import_in_every_layout_and_find_nothing_wrong() -> None:
    imported: Counter[LayoutMode] = Counter()
    for seed in WITH_LEGACY[:12]:
        layout = make_plan(seed, 1).site.layout
        if not imported[layout]:
            verdict = run_seed(seed)
            assert verdict.violation is None, verdict.violation
            imported[layout] += verdict.counts["imported"]
    assert all(imported[layout] for layout in LAYOUTS), imported


def found_within(seeds: list[int]) -> str:
    return next((verdict.violation for seed in seeds if (verdict := run_seed(seed)).violation), "")


@pytest.mark.extended
def test_a_released_file_that_is_never_collected_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_names(self: ReleasedRecords) -> list[str]:
        return []

    monkeypatch.setattr(ReleasedRecords, "names", no_names)
    assert "what nothing refers to is collected" in found_within(WITH_LEGACY[:20])


def test_a_deleted_segment_that_its_own_header_brings_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(container: object, name: str, sid: int) -> None:
        return None

    for module in (export, header_updates):
        monkeypatch.setattr(module, "mark_imported", nothing)
    assert found_within(
        [seed for seed in WITH_LEGACY if make_plan(seed, 1).site.layout is LayoutMode.CODE_ONLY_UPGRADE][:10]
    )


def test_a_file_that_was_not_imported_must_stay_as_it_is() -> None:
    left = LegacyFilesLeft((LegacyFiles("f", (b"abc", b"de")),))
    contents = left.needed(())
    assert set(contents) == {"f$header", "f$offset.0", "f$offset.3"}
    assert not list(left.breaches((), contents, {}))
    assert list(left.breaches((), contents | {"f$offset.0": b"abd"}, {})) == [
        "f$offset.0 holds other bytes than it did"
    ]
    assert list(left.breaches((), {"f$header": contents["f$header"], "f$offset.0": b"abc"}, {})) == [
        "f$offset.3 is gone"
    ]
