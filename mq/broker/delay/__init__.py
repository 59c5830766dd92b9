"""Delayed messages: levels, times, recall."""
