"""Broadcasting groups: each consumer keeps offsets of its own."""
