"""Garbage: what may be deleted (pure rules), and the collector that does it."""
