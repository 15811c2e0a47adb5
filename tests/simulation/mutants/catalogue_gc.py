"""Bugs in the collector and in the claims: chunks that are needed go, or chunks that nobody needs stay.

Left out on purpose, because each alone changes nothing: no barrier before the delete, garbage of a cycle that
is not complete, chunks that are tracked after their creation. The collector looks at the references once
more, and nobody else can add one to a name of its own.
"""

from __future__ import annotations

from .mutant import Edit, Mutant, mutant

_RULES = "actors/gc/rules.py"
_COLLECTOR = "actors/gc/collector.py"

GC: tuple[Mutant, ...] = (
    Mutant(
        "collector-ignores-references",
        "a new owner deletes chunks of older owners that segments are made of",
        "G1",
        (
            Edit(_RULES, "created < epoch and name not in referenced]", "created < epoch]"),
            Edit(_RULES, "        and garbage.name not in referenced\n", ""),
        ),
    ),
    Mutant(
        "collector-takes-chunks-of-running-transactions",
        "whatever nothing refers to is deleted at once: also a chunk between its creation and the commit "
        "that refers to it",
        "G1, hole 5",
        (
            Edit(_RULES, "created < epoch and name", "created <= epoch and name"),
            Edit(
                _RULES,
                "        now >= garbage.due\n        and completed_cycle >= garbage.after_cycle\n        "
                "and ",
                "        ",
            ),
            Edit(_RULES, "        and garbage.name not in in_transaction\n", ""),
        ),
    ),
    mutant(
        "orphans-are-not-looked-for",
        "chunks that a dead owner left behind stay for ever",
        "G2",
        _COLLECTOR,
        "listed = listed or await self._find_orphans()",
        "listed = True",
    ),
    mutant(
        "claims-are-never-collected",
        "each opening leaves one more claim in long-term storage",
        "G2",
        _COLLECTOR,
        "        self.release(claims)\n",
        "",
    ),
    mutant(
        "dropped-chunks-are-not-released",
        "chunks of truncated and deleted segments stay until the next opening",
        "G2",
        "storage_backends/segments/segment_transaction.py",
        "        self.core.garbage.release(list(self._dropped))\n",
        "",
    ),
    mutant(
        "claim-not-placed",
        "an owner writes to long-term storage without a claim, so that a copied folder would not notice it",
        "W8, hole 8",
        "actors/container/container.py",
        "            epoch = await self._place_claim(epoch)\n",
        "            self._claimed = True\n",
    ),
)
