"""The protocol between the supervisor and its hosts."""
