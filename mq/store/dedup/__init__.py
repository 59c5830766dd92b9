"""mq/dedup: what was sent under a dedup key."""
