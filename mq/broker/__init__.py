"""What RocketMQ's broker does: protocol.py says what may be asked of one, local.py is one over a directory."""
