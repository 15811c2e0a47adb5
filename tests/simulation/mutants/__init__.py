"""Planted bugs: each breaks one rule of the protocols, and the simulator must notice."""
