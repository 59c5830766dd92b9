"""Threads and callbacks over any Broker."""
