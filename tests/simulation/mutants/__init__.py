"""Planted protocol bugs, and the share of them that the simulator finds: its mutation score."""
