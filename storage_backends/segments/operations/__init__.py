"""The operations on chunked segments. Those that make changes take a transaction, the others the context."""
