"""A host process: serves the containers that the supervisor orders it to serve."""
