"""The HTTP server over a store's verbs: a Starlette application, and how a process runs it."""
