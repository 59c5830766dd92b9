"""Consumer groups of a cluster: members, the queues they own, offsets, administration."""
