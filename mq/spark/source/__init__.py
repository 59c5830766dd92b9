"""The source: reading queues as a batch or as a stream."""
