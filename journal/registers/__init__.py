"""The register of a log in local files."""
