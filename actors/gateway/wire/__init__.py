"""What travels between client and server, without any I/O: errors, paths, headers, ranges, batches, JSON
documents."""
