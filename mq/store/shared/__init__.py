"""What the processes of a store share in memory: the control file, locks, leases, wake-ups, group files."""
