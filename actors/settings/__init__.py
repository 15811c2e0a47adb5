"""The configuration of a store and its service."""
