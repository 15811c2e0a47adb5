"""Contracts and shared nouns: what every backend promises, and the words they promise it in."""
