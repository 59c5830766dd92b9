"""Bytes on disk and shared memory: RocketMQ's files, shared by any number of processes."""
