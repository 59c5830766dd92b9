"""Queues of a cluster as columns, for Spark: one queue, and the limits of many."""
