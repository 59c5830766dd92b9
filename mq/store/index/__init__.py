"""index/: from keys and unique ids to records of the log."""
