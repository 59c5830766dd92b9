"""What RocketMQ's broker does: mq/api/broker.py says what may be asked, local.py answers from a directory."""
