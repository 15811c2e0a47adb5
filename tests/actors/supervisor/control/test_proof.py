"""Both sides of a joining connection prove that they have read the record, and nothing that was seen on the
wire proves it again (V12)."""

from __future__ import annotations

import hmac

import attrs
import pytest

from tierlog.actors.supervisor.control.messages import Challenge, Proof, Proved, decode, encode
from tierlog.actors.supervisor.control.proof import (
    PROOF_BYTES_MAX,
    answer_challenge,
    confirm_proof,
    is_confirmed,
)

SECRET, OTHER = b"s" * 32, b"o" * 32
CHALLENGE, NONCE = Challenge("0a" * 16), "1b" * 16


def test_v12_who_has_read_the_record_is_proven_to_the_other_side() -> None:
    proof = answer_challenge(SECRET, CHALLENGE, NONCE)
    proved = confirm_proof(SECRET, CHALLENGE, proof)
    assert proved is not None
    assert is_confirmed(SECRET, CHALLENGE, proof, proved)


def test_v12_another_secret_proves_nothing() -> None:
    assert confirm_proof(SECRET, CHALLENGE, answer_challenge(OTHER, CHALLENGE, NONCE)) is None
    proof = answer_challenge(SECRET, CHALLENGE, NONCE)
    forged = confirm_proof(OTHER, CHALLENGE, answer_challenge(OTHER, CHALLENGE, NONCE))
    assert forged is not None
    assert not is_confirmed(SECRET, CHALLENGE, proof, forged)


def test_v12_a_recorded_proof_is_worth_nothing_for_another_challenge() -> None:
    recorded = answer_challenge(SECRET, CHALLENGE, NONCE)
    assert confirm_proof(SECRET, Challenge("2c" * 16), recorded) is None
    proved = confirm_proof(SECRET, CHALLENGE, recorded)
    assert proved is not None
    later = answer_challenge(SECRET, CHALLENGE, "3d" * 16)
    assert not is_confirmed(SECRET, CHALLENGE, later, proved), "nor the supervisor's for another nonce"


def test_v12_a_proof_that_is_sent_back_to_its_maker_proves_nothing() -> None:
    proof = answer_challenge(SECRET, CHALLENGE, NONCE)
    assert not is_confirmed(SECRET, CHALLENGE, proof, Proved(proof.mac))
    # The host as a supervisor's oracle: it makes only a host's MACs.
    reflected = answer_challenge(SECRET, Challenge(NONCE), CHALLENGE.nonce)
    assert confirm_proof(SECRET, CHALLENGE, attrs.evolve(reflected, nonce=NONCE)) is None


def test_v12_parts_of_different_lengths_do_not_run_together() -> None:
    one = answer_challenge(SECRET, Challenge("ab"), "c")
    other = answer_challenge(SECRET, Challenge("a"), "bc")
    assert one.mac != other.mac


@pytest.mark.parametrize("text", ["", "é", "x" * 64, "0" * 64, "\ud800"])
def test_v12_any_text_may_come_in_place_of_a_mac_or_a_nonce(text: str) -> None:
    """Also a half of a surrogate pair, which JSON can name."""
    assert confirm_proof(SECRET, CHALLENGE, Proof(NONCE, text)) is None
    assert confirm_proof(SECRET, CHALLENGE, Proof(text, "0" * 64)) is None
    assert not is_confirmed(SECRET, CHALLENGE, answer_challenge(SECRET, CHALLENGE, NONCE), Proved(text))
    assert not is_confirmed(SECRET, Challenge(text), Proof(NONCE, ""), Proved("0" * 64))


def test_v12_macs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one == other)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    proof = answer_challenge(SECRET, CHALLENGE, NONCE)
    assert confirm_proof(SECRET, CHALLENGE, proof) is not None
    assert confirm_proof(OTHER, CHALLENGE, proof) is None
    assert compared == [True, False]


def test_v12_each_line_of_a_proof_fits_its_bound() -> None:
    proof = answer_challenge(SECRET, CHALLENGE, NONCE)
    proved = confirm_proof(SECRET, CHALLENGE, proof)
    assert proved is not None
    for message in (CHALLENGE, proof, proved):
        assert len(encode(message)) < PROOF_BYTES_MAX
        assert decode(encode(message)) == message
