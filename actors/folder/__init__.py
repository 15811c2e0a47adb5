"""The data folder: paths, identity, lock files, chunk location and layout version."""
