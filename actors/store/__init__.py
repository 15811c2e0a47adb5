"""The embedded store: its verbs, how it is opened, and its read-only view."""
