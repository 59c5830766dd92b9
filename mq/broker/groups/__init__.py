"""Consumer groups: members, claims of queues, committed offsets, retries."""
