"""What RocketMQ's broker does: protocol.py says what may be asked, local.py answers from a directory."""
