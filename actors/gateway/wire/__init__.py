"""What travels between client and server, without I/O: errors, paths, headers, ranges, batches, JSON
bodies."""
