"""RocketMQ's design as an embedded library."""
