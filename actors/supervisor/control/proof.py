"""How a host that joins and its supervisor prove to each other that they have read the record ``control``,
whose secret only those can read who can read the store's bucket (rule V12). No I/O.

The supervisor sends a nonce, the host answers with a nonce of its own and a MAC of both, and the supervisor
with another MAC of both. Each MAC names the side that made it, so that neither can be sent back to its maker,
and a recorded one fits no other nonce.
"""

from __future__ import annotations

import hmac

from .messages import Challenge, Proof, Proved

NONCE_BYTES = 16
PROOF_BYTES_MAX = 512
"""The longest line before the proof."""


def answer_challenge(secret: bytes, challenge: Challenge, nonce: str) -> Proof:
    """The host's answer. ``nonce``: 32 hexadecimal digits that were never used."""
    return Proof(nonce, _mac(secret, "host", challenge.nonce, nonce))


def confirm_proof(secret: bytes, challenge: Challenge, proof: Proof) -> Proved | None:
    """The supervisor's answer; None if the host does not know the secret."""
    expected = _mac(secret, "host", challenge.nonce, proof.nonce)
    if not hmac.compare_digest(expected.encode(), _encoded(proof.mac)):
        return None
    return Proved(_mac(secret, "supervisor", challenge.nonce, proof.nonce))


def is_confirmed(secret: bytes, challenge: Challenge, proof: Proof, proved: Proved) -> bool:
    """Whether the supervisor knows the secret."""
    expected = _mac(secret, "supervisor", challenge.nonce, proof.nonce)
    return hmac.compare_digest(expected.encode(), _encoded(proved.mac))


def _mac(secret: bytes, side: str, supervisors: str, hosts: str) -> str:
    # As texts of known lengths could run together, each has its own.
    parts = [_encoded(part) for part in (side, supervisors, hosts)]
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(secret, b"tierlog control 1" + message, "sha256").hex()


def _encoded(text: str) -> bytes:
    # JSON can name a half of a surrogate pair, of which UTF-8 has none: a wrong proof, and no error here.
    return text.encode("utf-8", "surrogatepass")
