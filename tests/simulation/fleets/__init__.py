"""A fleet in virtual time: real supervisors, hosts that are simulated, machines and networks that fail."""
