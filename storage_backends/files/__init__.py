"""The file layer on the operating system: the only place with threads and blocking file calls."""
