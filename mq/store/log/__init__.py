"""commitlog/: every way of appending a message."""
