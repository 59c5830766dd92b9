"""Consumer groups of a cluster: members, the queues they have, offsets, what operators ask."""
