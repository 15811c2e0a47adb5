"""A store's data folder: paths, identity, lock files, where its chunks are, and the version of its layout."""
