"""What one log group carries: its payload, packed and unpacked without I/O."""
