"""Opening a directory that was not closed cleanly, or whose files are damaged."""
