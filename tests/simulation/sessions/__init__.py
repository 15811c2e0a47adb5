"""Worlds of clients and hosts, and the sessions between them."""
