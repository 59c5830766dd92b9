"""Exactly once: sends under a key, and the keys that a group has handled."""
