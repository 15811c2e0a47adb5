"""What was said, in order: the vocabulary of a container's log, and its replay."""
