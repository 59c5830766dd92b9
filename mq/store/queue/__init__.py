"""consumequeue/: the units of queues, and reading by them."""
