"""Deterministic simulation: whole stores in virtual time, every fault, one seed replays it. Needs trio."""
