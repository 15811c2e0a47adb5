"""Records and leases that the processes of one store share."""
