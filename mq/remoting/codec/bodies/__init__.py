"""The JSON bodies of requests and answers. Names and defaults are those of RocketMQ's classes."""
