"""Ledgers and records of Apache BookKeeper and ZooKeeper, through their own clients in a process beside this
one."""
