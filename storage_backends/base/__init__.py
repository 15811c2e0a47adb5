"""Contracts and shared types of all backends."""
